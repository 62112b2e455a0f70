#include "backend/rank/execute.hpp"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "backend/machine/accelerator.hpp"
#include "backend/rank/initial.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

using sim::InstructionKind;

}  // namespace

Executor::Executor(const sim::Program& program, sim::Program::Place place, Communicator& communicator,
                   std::uint64_t seed)
    : program_(program),
      role_(program.roles.at(place.role)),
      place_(place),
      communicator_(communicator),
      tensors_(role_.tensors.size()),
      tickets_(role_.size()),
      completions_(role_.size()),
      workspace_bytes_(role_.size()),
      seed_(seed),
      batch_piece_(program.batch_piece(communicator.rank())),
      draw_number_(program.draw_number(communicator.rank())),
      steps_in_list_(program.steps_in_list()) {
  draw_from(seed);
  make_persistent(seed);
  plan();
  if (program.bodies() == 1) return;
  bodies_ = {role_.body_begin};
  bodies_.insert(bodies_.end(), role_.next_bodies.begin(), role_.next_bodies.end());
}

at::Tensor Executor::allocate(std::uint32_t id) const {
  const sim::TensorSpec& spec = role_.tensors[id].spec;
  return at::empty(spec.shape, at::TensorOptions(communicator_.device()).dtype(scalar_type(spec.dtype)),
                   memory_format(spec));
}

/// The tensor in its storage, of which the owner lives.
at::Tensor Executor::view(std::uint32_t id) const {
  const sim::Tensor& tensor = role_.tensors[id];
  const at::Tensor& owner = tensors_[role_.storages[tensor.storage].owner];
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(owner.storage()), owner.key_set(),
                                           c10::scalarTypeToTypeMeta(scalar_type(tensor.spec.dtype)));
  impl->set_storage_offset(program_.offset_bytes(tensor, communicator_.rank()) / sim::size_of(tensor.spec.dtype));
  impl->set_sizes_contiguous(tensor.spec.shape);
  if (tensor.spec.channels_last) impl->empty_tensor_restride(memory_format(tensor.spec));
  return at::Tensor(std::move(impl));
}

void Executor::make_persistent(std::uint64_t seed) {
  storages_.assign(role_.storages.size(),
                   c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>()));
  for (std::uint32_t s = 0; s < role_.storages.size(); ++s) {
    const sim::Storage& storage = role_.storages[s];
    if (!storage.persistent) continue;
    tensors_[storage.owner] = allocate(storage.owner).zero_();
    storages_[s] = tensors_[storage.owner].storage().getWeakStorageImpl();
  }
  for (std::uint32_t t = 0; t < role_.tensors.size(); ++t) {
    const sim::Tensor& tensor = role_.tensors[t];
    if (!role_.storages[tensor.storage].persistent) continue;
    if (!tensors_[t].defined()) tensors_[t] = view(t);
    if (tensor.unit == sim::kNone)
      set_initial(tensors_[t], tensor, program_.piece_of(tensor, communicator_.rank()), seed);
    else
      set_initial(tensors_[t], program_.slices_of(role_, tensor, communicator_.rank()), seed);
  }
  restart_peak();
}

/// Which storages and tensors there are before an instruction.
struct Executor::Lifetimes {
  std::vector<bool> alive, defined;                    // storages, tensors
  std::vector<std::vector<std::uint32_t>> tensors_of;  // by storage
};

void Executor::plan() {
  Lifetimes lifetimes{std::vector<bool>(role_.storages.size()), std::vector<bool>(role_.tensors.size()),
                      std::vector<std::vector<std::uint32_t>>(role_.storages.size())};
  for (std::uint32_t t = 0; t < role_.tensors.size(); ++t) {
    const std::uint32_t storage = role_.tensors[t].storage;
    lifetimes.tensors_of[storage].push_back(t);
    lifetimes.alive[storage] = lifetimes.defined[t] = role_.storages[storage].persistent;
  }
  for (std::uint32_t i = 0; i < role_.size(); ++i) {
    Action action{.kind = role_.kind[i], .reads = role_.reads(i), .writes = role_.writes(i)};
    plan_lifetimes(i, lifetimes, action);
    plan_work(i, action);
    actions_.push_back(std::move(action));
  }
}

void Executor::plan_lifetimes(std::uint32_t i, Lifetimes& lifetimes, Action& action) {
  auto& [alive, defined, tensors_of] = lifetimes;
  for (std::uint32_t t : action.reads)
    if (!defined[t]) {
      action.views.push_back(t);
      defined[t] = true;
    }
  for (std::uint32_t t : action.writes) {
    const std::uint32_t s = role_.tensors[t].storage, owner = role_.storages[s].owner;
    // An op's kernel makes its outputs itself, or answers with its input's storage.
    const bool kernel_makes_it = action.kind == InstructionKind::compute && (alive[s] || t == owner);
    if (!alive[s]) {
      alive[s] = true;
      action.begins.push_back(t);
      if (!kernel_makes_it) {
        action.allocations.push_back(owner);
        defined[owner] = true;
      }
    }
    if (!defined[t] && !kernel_makes_it) action.views.push_back(t);
    defined[t] = true;
  }
  for (std::uint32_t s : role_.frees(i)) {
    alive[s] = false;
    for (std::uint32_t t : tensors_of[s]) {
      if (defined[t]) action.drops.push_back(t);
      defined[t] = false;
    }
  }
}

/// What the instruction computes, or with whom it communicates.
void Executor::plan_work(std::uint32_t i, Action& action) {
  if (is_computed(action.kind)) {
    action.work = &program_.works.at(role_.work[i]);
    action.run = op_kernels().at(action.work->op.kind->name).run;
    action.is_loss = action.work->is_loss();
    draws_ |= draws(action.work->op);
  } else if (action.kind == InstructionKind::wait) {
    action.other = role_.awaits[i];
  } else {
    action.other =
        action.kind == InstructionKind::collective ? role_.peer[i] : program_.partner(role_, communicator_.rank(), i);
    const auto operand = action.kind == InstructionKind::recv ? action.writes : action.reads;
    sim::check_internal(action.kind == InstructionKind::collective || operand.size() == 1,
                        "instruction {} ({}) must move one tensor", i, program_.label(role_, i));
  }
}

StepRecord Executor::new_record() const {
  StepRecord record;
  for (auto* times : {&record.times.posted_s, &record.times.start_s, &record.times.end_s})
    times->resize(actions_.size());
  if (!communicator_.device().is_cpu()) record.times.issued_s.resize(actions_.size());
  record.losses.reserve(static_cast<std::size_t>(std::ranges::count(actions_, true, &Action::is_loss)));
  return record;
}

void Executor::capture() {
  sim::check_internal(checked_, "a step is captured before the first one");
  graph_ = make_graph(communicator_.device());
}

void Executor::begin_training_step(std::int64_t step) {
  data_seed_ = data_seed(seed_, step, batch_piece_);
  if (!draws_ || is_exact_ || graph_ != nullptr || communicator_.device().is_privateuseone()) return;
  at::Generator generator = at::globalContext().defaultGenerator(communicator_.device());
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(data_seed(draw_seed_, step, draw_number_));
}

void Executor::step(StepRecord& record, Progress& progress) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  record.losses.clear();
  progress.step.fetch_add(1, std::memory_order_relaxed);
  std::uint32_t i = sim::kNone;
  try {
    begin_training_step(steps_);
    step_start_s_ = communicator_.begin_step();
    if (graph_ == nullptr)
      play(record, progress, i);
    else
      replay(record, progress, i);
    progress.instruction.store(i, std::memory_order_release);
    communicator_.mark(&record.times.end_of_step_s);
    communicator_.end_step();
    steps_ += steps_in_list_;
  } catch (const std::exception& error) {
    const std::string where =
        i < actions_.size() ? fmt::format(", instruction {} ({})", i, program_.label(role_, i)) : "";
    const std::string_view what = error.what();
    throw sim::RunError("{}{}: {}", communicator_.named(communicator_.rank()), where, what.substr(0, what.find('\n')));
  }
  progress.instruction.store(Progress::kOutsideStep, std::memory_order_relaxed);
  allocator_peak_bytes_ = std::max(allocator_peak_bytes_, allocated().peak);
  checked_ = true;
}

/// Instruction by instruction; `i` is where it is.
void Executor::play(StepRecord& record, Progress& progress, std::uint32_t& i) {
  // Far fewer commands than a driver's queue holds (CUDA's 1,024), and longer than a host takes to issue them.
  constexpr std::size_t kHeldTogether = 64;
  constexpr double kHold_s = 1e-4;  // for each
  gradients_.clear();
  std::size_t held = 0;  // instructions from here on
  std::size_t body = 0;  // the next
  std::uint32_t fills = 0;
  const std::int64_t in_prologue = steps_in_list_ - static_cast<std::int64_t>(bodies_.size());  // training steps
  for (i = 0; i < actions_.size(); ++i) {
    if (body < bodies_.size() && i == bodies_[body])
      begin_training_step(steps_ + in_prologue + static_cast<std::int64_t>(body++));
    if (fills < fills_before_.size() && i == fills_before_[fills]) fill_(++fills);
    const sim::Work* const work = actions_[i].work;
    if (work != nullptr && work->op.kind->on_host) {
      held = 0;  // it waits for the device
    } else if (host_leads_ && held == 0) {
      held = std::min(kHeldTogether, actions_.size() - i);
      hold(communicator_.device(), kHold_s * static_cast<double>(held));
    }
    if (held > 0) --held;
    progress.instruction.store(i, std::memory_order_release);  // the labels of this run are written
    execute(i, actions_[i], record);
    if (!record.times.issued_s.empty()) record.times.issued_s[i] = now_s();
  }
}

/// All at once, after the first time has captured it.
void Executor::replay(StepRecord& record, Progress& progress, std::uint32_t& i) {
  if (!captured_) {
    graph_->capture([&] { play(record, progress, i); });
    communicator_.forget_captured();
    losses_ = std::move(record.losses);
    captured_ = true;
  }
  i = static_cast<std::uint32_t>(actions_.size());
  graph_->replay();
  record.losses = losses_;
}

void Executor::execute(std::uint32_t i, const Action& action, StepRecord& record) {
  for (std::uint32_t t : action.allocations) tensors_[t] = allocate(t);
  for (std::uint32_t t : action.views) tensors_[t] = view(t);
  if (is_posted(action.kind)) communicator_.mark(&record.times.posted_s[i]);
  switch (action.kind) {
    case InstructionKind::compute:
    case InstructionKind::copy:
    case InstructionKind::update:
      compute(i, action, record);
      break;
    case InstructionKind::send:
      tickets_[i] = communicator_.post_send(in_memory_order(tensors_[action.reads[0]]), action.other, role_.tag[i]);
      break;
    case InstructionKind::recv:
      tickets_[i] = communicator_.post_recv(in_memory_order(tensors_[action.writes[0]]), action.other, role_.tag[i]);
      break;
    case InstructionKind::collective:
      for (const std::uint32_t t : action.reads) reads_.push_back(in_memory_order(tensors_[t]));
      for (const std::uint32_t t : action.writes) writes_.push_back(in_memory_order(tensors_[t]));
      if (reads_.empty() && works_in_place(role_.collective[i])) reads_ = writes_;  // it only gets a broadcast
      tickets_[i] = communicator_.post_collective(
          {role_.collective[i], action.other, role_.root[i], role_.reduction[i]}, reads_, writes_);
      reads_.clear();
      writes_.clear();
      break;
    case InstructionKind::wait:
      communicator_.mark(&record.times.start_s[i]);
      communicator_.wait(tickets_[action.other], completions_[action.other]);
      communicator_.mark(&record.times.end_s[i]);
      break;
  }
  if (!checked_) {
    for (std::uint32_t t : action.begins)
      storages_[role_.tensors[t].storage] = tensors_[t].storage().getWeakStorageImpl();
    peak_bytes_ = std::max(peak_bytes_, held_bytes());
  }
  for (std::uint32_t t : action.drops) tensors_[t].reset();
}

/// What this rank's tensors hold now.
std::int64_t Executor::held_bytes() const {
  if (communicator_.device().is_cpu()) return rank_bytes(communicator_.rank()).live;
  std::int64_t bytes = 0;
  for (const auto& storage : storages_)
    if (const auto alive = storage.lock()) bytes += static_cast<std::int64_t>(alive->nbytes());
  return bytes;
}

/// The bytes that the allocator of the rank's device has given.
RankBytes Executor::allocated() const {
  if (communicator_.device().is_cpu()) return rank_bytes(communicator_.rank());
  return communicator_.shares_device() ? RankBytes{} : allocated_bytes(communicator_.device());
}

void Executor::restart_peak() const {
  if (communicator_.device().is_cpu())
    reset_peak(communicator_.rank());
  else
    reset_allocated_peak(communicator_.device());
}

void Executor::compute(std::uint32_t i, const Action& action, StepRecord& record) {
  for (std::uint32_t t : action.reads) reads_.push_back(tensors_[t]);
  for (std::uint32_t t : action.writes) writes_.push_back(tensors_[t]);
  if (keep_gradients_ && action.kind == InstructionKind::update) {
    const std::size_t count = action.work->op.inputs.size();
    NamedTensors gradients;
    for (std::size_t k = 0; k < count; ++k)
      add_pieces("gradient", action.reads[k], reads_[count + k].clone(), gradients);
    for (NamedPiece& gradient : gradients) {
      // Of training steps that are played together the last one's stays.
      const auto before =
          program_.bodies() > 1 ? std::ranges::find(gradients_, gradient.name, &NamedPiece::name) : gradients_.end();
      if (before != gradients_.end())
        *before = std::move(gradient);
      else
        gradients_.push_back(std::move(gradient));
    }
  }

  if (!checked_) {
    allocator_peak_bytes_ = std::max(allocator_peak_bytes_, allocated().peak);
    restart_peak();
  }
  communicator_.mark(&record.times.start_s[i]);
  action.run(*action.work, {reads_, writes_, role_.scale[i], data_seed_, is_exact_});
  communicator_.mark(&record.times.end_s[i]);

  if (!checked_) {
    const RankBytes bytes = allocated();
    workspace_bytes_[i] = bytes.peak - bytes.live;
    check_written(action);
  }
  for (std::uint32_t k = 0; k < writes_.size(); ++k) tensors_[action.writes[k]] = std::move(writes_[k]);
  if (action.is_loss) record.losses.push_back(tensors_[action.writes[0]]);
  reads_.clear();
  writes_.clear();
}

/// A kernel's outputs are what the Program says: dtype, shape, and the same place in a storage of the same size.
void Executor::check_written(const Action& action) const {
  for (std::uint32_t k = 0; k < writes_.size(); ++k) {
    const std::uint32_t t = action.writes[k];
    const sim::Tensor& tensor = role_.tensors[t];
    const sim::Storage& storage = role_.storages[tensor.storage];
    const at::Tensor& written = writes_[k];
    const std::int64_t begin = program_.offset_bytes(tensor, communicator_.rank());
    sim::check_internal(written.defined(), "'{}' wasn't written", tensor.name);
    sim::check_internal(written.scalar_type() == scalar_type(tensor.spec.dtype) &&
                            written.sizes() == tensor.spec.shape && written.is_contiguous(memory_format(tensor.spec)),
                        "'{}' was written as {}[{}] (strides {}), the Program says {}", tensor.name,
                        c10::toString(written.scalar_type()), fmt::join(written.sizes(), ","),
                        fmt::join(written.strides(), ","), to_string(tensor.spec));
    sim::check_internal(static_cast<std::int64_t>(written.storage().nbytes()) == storage.bytes &&
                            written.storage_offset() * written.element_size() == begin,
                        "'{}' was written at byte {} of {}, the Program says {} of {}", tensor.name,
                        written.storage_offset() * written.element_size(), written.storage().nbytes(), begin,
                        storage.bytes);
    const at::Tensor& before = tensors_[t].defined() ? tensors_[t] : tensors_[storage.owner];
    sim::check_internal(!before.defined() || before.storage().is_alias_of(written.storage()),
                        "'{}' was written outside of its storage", tensor.name);
  }
}

/// Moments on the host's clock become times since the start of the step.
void Executor::settle(StepRecord& record) const {
  sim::RankTimeline& times = record.times;
  record.begin_s = step_start_s_;
  times.end_of_step_s -= step_start_s_;
  if (graph_ != nullptr) {
    times = {.end_of_step_s = times.end_of_step_s};
    return;
  }
  for (double& moment_s : times.issued_s) moment_s -= step_start_s_;
  for (std::uint32_t i = 0; i < actions_.size(); ++i) {
    if (is_posted(actions_[i].kind)) {
      times.start_s[i] =
          completions_[i].start_s > 0 ? completions_[i].start_s : std::numeric_limits<double>::quiet_NaN();
      times.end_s[i] = completions_[i].end_s;
    } else {
      times.posted_s[i] = times.start_s[i];
    }
    for (auto* moments : {&times.posted_s, &times.start_s, &times.end_s}) (*moments)[i] -= step_start_s_;
  }
}

/// `values`: of the tensor, or of another that lies so. Of a unit's tensor each parameter's.
void Executor::add_pieces(std::string_view what, std::uint32_t id, const at::Tensor& values, NamedTensors& to) const {
  const sim::Tensor& tensor = role_.tensors[id];
  const std::uint32_t rank = communicator_.rank();
  if (role_.tensors[role_.storages[tensor.storage].owner].unit == sim::kNone)
    to.push_back({fmt::format("{} {}", what, tensor.name), program_.piece_of(tensor, rank), values});
  else
    for (sim::Program::Slice& slice : program_.slices_of(role_, tensor, rank))
      to.push_back({fmt::format("{} {}", what, slice.of->name), std::move(slice.piece),
                    values.narrow(0, slice.begin, slice.elements.size), slice.elements, slice.of->whole.channels_last});
}

NamedTensors Executor::state() const {
  NamedTensors named = gradients_;
  const std::vector<bool> changed = role_.changed_storages();
  for (std::size_t s = 0; s < role_.storages.size(); ++s) {
    const sim::Storage& storage = role_.storages[s];
    if (!storage.persistent || !changed[s]) continue;
    if (storage.tensor_class == sim::TensorClass::weight)
      add_pieces("parameter", storage.owner, tensors_[storage.owner], named);
    else if (storage.tensor_class == sim::TensorClass::buffer)
      add_pieces("buffer", storage.owner, tensors_[storage.owner], named);
  }
  return named;
}

}  // namespace backend
