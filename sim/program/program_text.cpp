// The text form of a Program. One line per item, in this order; two blanks or more begin a
// remark here, not in a Program:
//
//   paragauge-program-2
//   model toy_mlp,global_batch=8
//   strategy pipeline,pp=2,schedule=gpipe,microbatches=2
//   mesh dp=1 pp=2                                               axes, outermost first; dp=3/to_last: Rest
//   partition global_batch=8 microbatches=2 rows=R,R             rows: a placement for each axis; broadcast_buffers
//   group pp pp                                                  a name, and its axes, joined by +
//   work relu.forward f32[4,6] inplace=0                         as in a Profile; referred to as w0, w1, …
//   role stage0 ranks=0
//   tensor input f32[8,6] input persistent of=[8,6] on=R,R model_input   a storage of its own; a piece of a larger one
//   view input#1 f32[4,6] input +96                              a tensor inside another one's storage
//   tensor relu1 f32[4,6] activation
//   0 compute w0 node=relu1 mb=1 : input#1 -> relu1              reads -> writes
//   1 send t0 to=pp+1 tag=0 node=relu1 mb=1 : relu1              opens ticket t0; to the next along pp
//   2 wait t0 node=relu1 mb=1 : ; free relu1                     closes it; freed storages, by owner
//   role stage1 ranks=1
//   tensor relu1 f32[4,6] activation
//   0 recv t0 from=pp-1 tag=0 node=relu1 mb=1 : -> relu1
//   1 wait t0 node=relu1 mb=1 : ; free relu1
//
// before the mesh `threads 2`, of each rank, where it isn't 1, which then stands in every work, too; and between the
// instructions of a role that has sections: `prologue`, `body steps=1` (training steps; once per body, where they are
// unrolled), `epilogue`. Behind the partition `daso local=2 skips=4 wait=1 local_skips=1` (sim/strategy/daso.hpp), where
// the lists play that; in the partition `draws=tp`, axes along which ranks draw random numbers of their own beside rows'.
// Where parameters lie in units, these come before the role's tensors: `unit unit0`, then each parameter, `part fc.weight f32[5,10]
// uniform=0,0.3` (of a piece also on=R,S0), so that a flat tensor can say unit=unit0. `along=dp` behind a view: of equal
// parts that of the rank's coordinate.
// Tests read this example (tests/sim/program/program_test.cpp).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "sim/error.hpp"
#include "sim/program/program.hpp"

namespace sim {
namespace {

constexpr std::string_view kFormat = "paragauge-program-2", kOldFormat = "paragauge-program-1";
constexpr std::int64_t kMostSamples = std::int64_t{1} << 40;
constexpr std::size_t kMostGroups = 1000;        // checking them takes groups × ranks
constexpr std::uint64_t kMostMembers = 1 << 24;  // of all groups
constexpr std::size_t kMostAxes = 16;
constexpr std::uint32_t kMostRanks = 1 << 20;
constexpr std::int64_t kMostSteps = 1 << 20;

std::string initial_text(const Initial& initial) {
  using enum Initial::Kind;
  if (initial.kind == uniform) return fmt::format(" uniform={},{}", initial.center, initial.bound);
  if (initial.kind == constant) return fmt::format(" constant={}", initial.center);
  if (initial.kind == runs) return " values=" + to_string(*initial.runs);
  if (initial.kind == model_input && initial.bound > 0)
    return fmt::format(" model_input={},{}", initial.center, initial.bound);
  if (initial.kind == model_input)
    return initial.classes > 0 ? fmt::format(" model_input={}", initial.classes) : " model_input";
  if (initial.kind == model_target) return fmt::format(" model_target={}", initial.classes);
  return "";
}

/// Words of one line, with the line number for messages.
class Line {
 public:
  Line(std::string_view text, std::size_t number) : text_(text), number_(number) {}

  [[nodiscard]] bool empty() const { return text_.find_first_not_of(' ') == std::string_view::npos; }
  /// The next word; an error that says what was expected when there is none.
  std::string_view word(std::string_view expected) {
    skip();
    if (text_.empty()) fail("ends where {} is expected", expected);
    const std::size_t end = std::min(text_.find(' '), text_.size());
    const std::string_view result = text_.substr(0, end);
    text_.remove_prefix(end);
    return result;
  }
  std::string_view rest() {
    skip();
    return std::exchange(text_, {});
  }
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw ConfigError("program text, line {}: {}", number_, fmt::format(text, std::forward<Args>(args)...));
  }
  template <class Enum, std::size_t count>
  Enum one_of(const EnumNames<Enum, count>& known, std::string_view name) const {
    if (const std::optional<Enum> value = known.find(name)) return *value;
    fail("unknown {} '{}'; known: {}", known.what, name, fmt::to_string(fmt::join(known.names, ", ")));
  }
  /// What `read` makes of a part of the line; its errors get the line's number.
  template <class Read>
  auto checked(const Read& read) const {
    try {
      return read();
    } catch (const ConfigError& error) {
      fail("{}", error.what());
    }
  }
  template <class Number>
  Number number(std::string_view text, std::string_view what) const {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) fail("'{}' is not a valid {}", text, what);
    if constexpr (std::is_floating_point_v<Number>)
      if (!std::isfinite(value)) fail("'{}' is not a finite {}", text, what);
    return value;
  }

 private:
  void skip() { text_.remove_prefix(std::min(text_.find_first_not_of(' '), text_.size())); }
  std::string_view text_;
  std::size_t number_;
};

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    if (end == text.size()) return parts;
    text.remove_prefix(end + 1);
  }
}

std::uint32_t read_threads(const Line& line, std::string_view text) {
  const auto threads = line.number<std::uint32_t>(text, "number of threads");
  if (threads < 1 || threads > kMostThreads) line.fail("threads={} must be from 1 to {}", threads, kMostThreads);
  return threads;
}

/// "conv2d.forward f32[4,3,32,32] bias=1 kernel_size=5 …".
Work read_work(Line& line) {
  const std::string_view name = line.word("op.pass");
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos) line.fail("'{}' is not op.pass", name);
  Work work;
  work.op.kind = op_table().find(name.substr(0, dot));
  if (work.op.kind == nullptr) line.fail("unknown op kind '{}'; known: {}", name.substr(0, dot), op_table().names());
  work.pass = line.one_of(kPasses, name.substr(dot + 1));
  if ((work.pass == Pass::update) != (work.op.kind->role == OpRole::optimizer) ||
      (work.pass == Pass::backward && work.op.kind->role == OpRole::helper))
    line.fail("op '{}' has no pass '{}'", work.op.kind->name, to_string(work.pass));
  Attributes given;
  while (!line.empty()) {
    const std::string_view item = line.word("an item");
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      work.op.inputs.push_back(line.checked([&] { return tensor_spec_from(item); }));
    } else if (item.starts_with("grads=")) {
      work.grads = 0;
      for (std::string_view grad : split(item.substr(6), '+')) {
        if (grad == "p") work.grads |= kParameterGrads;
        if (grad.empty() || grad == "p") continue;
        const auto bit = line.number<std::uint32_t>(grad, "input");
        if (bit > 30) line.fail("input {} of grads must be from 0 to 30", bit);
        work.grads |= 1U << bit;
      }
    } else if (item.starts_with("precision=")) {
      work.op.precision = line.checked([&] { return precision_from(item.substr(equals + 1)); });
      if (!work.op.kind->matrix && work.op.kind->inputs != OpKind::kAsBody)
        line.fail("op '{}' has no precision", work.op.kind->name);
    } else if (item == "parameters=half") {
      work.op.half_parameters = true;
      if (!work.op.kind->matrix) line.fail("op '{}' has no parameters in half precision", work.op.kind->name);
    } else if (item.starts_with("threads=")) {
      work.threads = read_threads(line, item.substr(8));
    } else if (item.starts_with("body=")) {
      work.op.body = line.checked([&] { return &body_from(item.substr(5)); });
    } else {
      given[std::string(item.substr(0, equals))] = line.number<double>(item.substr(equals + 1), "number");
    }
  }
  const bool takes_body = work.op.kind->inputs == OpKind::kAsBody;
  if (takes_body != (work.op.body != nullptr))
    line.fail("op '{}' {} a body", work.op.kind->name, takes_body ? "needs" : "has no");
  const std::size_t needed = takes_body ? work.op.inputs.size() : static_cast<std::size_t>(work.op.kind->inputs);
  const bool takes_more = work.pass == Pass::update;
  if (takes_more ? work.op.inputs.size() < needed : work.op.inputs.size() != needed)
    line.fail("op '{}' takes {}{} inputs, found {}", work.op.kind->name, takes_more ? "at least " : "", needed,
              work.op.inputs.size());
  work.op.attributes = line.checked([&] { return complete_attributes(*work.op.kind, given, "work"); });
  line.checked([&] { return work.op.signature(); });
  return work;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Program parse() {
    Line first = next();
    const std::string_view format = first.rest();
    if (format == kOldFormat)
      first.fail("'{}' is an older format than '{}'; lower the strategy again", format, kFormat);
    if (format != kFormat) first.fail("expected '{}'", kFormat);
    while (!text_.empty()) {
      Line line = next();
      if (line.empty()) continue;
      const std::string_view what = line.word("an item");
      if (what == "model") {
        program_.model = line.rest();
      } else if (what == "strategy") {
        program_.strategy = line.rest();
      } else if (what == "threads") {
        program_.threads = read_threads(line, line.rest());
      } else if (what == "mesh") {
        mesh(line);
      } else if (what == "partition") {
        partition(line);
      } else if (what == "daso") {
        daso(line);
      } else if (what == "group") {
        group(line);
      } else if (what == "work") {
        program_.works.push_back(read_work(line));
        if (const std::uint32_t own = program_.works.back().threads; own != program_.threads)
          line.fail("a work of threads={}, but the ranks have {}", own, program_.threads);
      } else if (what == "role") {
        role(line);
      } else if (what == "unit") {
        current(line).units.push_back({std::string(line.word("a name")), {}});
      } else if (what == "part") {
        part(line);
      } else if (what == "tensor" || what == "view") {
        tensor(line, what == "view");
      } else if (what == "prologue" || what == "body" || what == "epilogue") {
        section(line, what);
      } else if (what.find_first_not_of("0123456789") == std::string_view::npos) {
        instruction(line, what);
      } else {
        line.fail(
            "unknown item '{}'; known: model, strategy, threads, mesh, partition, daso, group, work, role, unit, "
            "part, tensor, view, prologue, body, epilogue, an instruction's number",
            what);
      }
    }
    const bool has_sections = std::ranges::any_of(sections_, [](Section last) { return last != Section::none; });
    for (std::size_t r = 0; r < sections_.size(); ++r)
      if (has_sections && sections_[r] < Section::body)
        throw ConfigError("program text: role '{}' has no body", program_.roles[r].name);
    return std::move(program_);
  }

 private:
  Line next() {
    const std::size_t end = std::min(text_.find('\n'), text_.size());
    Line line(text_.substr(0, end), ++line_);
    text_.remove_prefix(std::min(end + 1, text_.size()));
    return line;
  }

  void mesh(Line& line) {
    if (!program_.mesh.axes.empty()) line.fail("a second mesh");
    std::uint64_t ranks = 1;
    while (!line.empty()) {
      const std::string_view item = line.word("axis=size");
      const std::vector<std::string_view> parts = split(item, '=');
      if (parts.size() != 2 || parts[0].empty()) line.fail("'{}' is not axis=size", item);
      const std::vector<std::string_view> size = split(parts[1], '/');
      Axis axis{std::string(parts[0]), line.number<std::uint32_t>(size[0], "size")};
      if (size.size() > 1) axis.rest = line.one_of(kRests, size[1]);
      if (std::ranges::find(program_.mesh.axes, axis.name, &Axis::name) != program_.mesh.axes.end())
        line.fail("the axis '{}' is there already", axis.name);
      ranks *= axis.size;
      if (axis.size == 0 || ranks > kMostRanks)
        line.fail("{} makes {} ranks; allowed: 1 to {}", item, ranks, kMostRanks);
      if (program_.mesh.axes.size() >= kMostAxes) line.fail("more than {} axes", kMostAxes);
      program_.mesh.axes.push_back(std::move(axis));
    }
  }

  std::vector<Placement> placements(const Line& line, std::string_view text) const {
    std::vector<Placement> list;
    for (const std::string_view each : split(text, ',')) {
      list.push_back(line.checked([&] { return placement_from(each); }));
      const std::size_t axis = list.size() - 1;
      if (axis < program_.mesh.axes.size() && list.back().root != kLast &&
          list.back().root >= program_.mesh.axes[axis].size)
        line.fail("'{}' is outside of axis {}={}", each, program_.mesh.axes[axis].name, program_.mesh.axes[axis].size);
    }
    if (list.size() != program_.mesh.axes.size())
      line.fail("{} placements on a mesh of {} axes", list.size(), program_.mesh.axes.size());
    return list;
  }

  void partition(Line& line) {
    while (!line.empty()) {
      const std::string_view item = line.word("key=value");
      if (item == "one_loss" || item == "broadcast_buffers") {
        (item == "one_loss" ? program_.one_loss : program_.broadcast_buffers) = true;
        continue;
      }
      const std::vector<std::string_view> parts = split(item, '=');
      if (parts.size() != 2) line.fail("'{}' is not key=value", item);
      if (parts[0] == "rows") {
        program_.rows = placements(line, parts[1]);
        for (const Placement& placement : program_.rows)
          if (placement.kind == Placement::Kind::shard && placement.dim != 0)
            line.fail("{} of the samples, which have one dimension", to_string(placement));
        continue;
      }
      if (parts[0] == "draws") {
        program_.draw_axes = axes_of(line, parts[1]);
        continue;
      }
      const auto value = line.number<std::int64_t>(parts[1], "whole number");
      if (value < 1 || value > kMostSamples) line.fail("{}={} must be from 1 to 2^40", parts[0], value);
      if (parts[0] == "global_batch")
        program_.global_batch = value;
      else if (parts[0] == "microbatches")
        program_.microbatches = value;
      else
        line.fail("unknown key '{}'; known: global_batch, microbatches, rows, draws, one_loss, broadcast_buffers",
                  parts[0]);
    }
  }

  void daso(Line& line) {
    Daso& daso = program_.daso.emplace();
    std::int64_t local = 0;
    for (const auto& [key, number] : {std::pair("local", &local), std::pair("skips", &daso.skips),
                                      std::pair("wait", &daso.wait), std::pair("local_skips", &daso.local_skips)}) {
      const std::vector<std::string_view> parts = split(line.word("key=value"), '=');
      if (parts.size() != 2 || parts[0] != key) line.fail("expected {}=…", key);
      *number = line.number<std::int64_t>(parts[1], "whole number");
      if (*number < 0 || *number > kMostSteps) line.fail("{}={} must be from 0 to {}", key, *number, kMostSteps);
    }
    if (local < 2) line.fail("local={} must be at least 2", local);
    daso.local = static_cast<std::uint32_t>(local);
  }

  std::vector<std::uint32_t> ranks(Line& line, std::string_view text) const {
    std::vector<std::uint32_t> list;
    for (std::string_view rank : split(text, ',')) list.push_back(line.number<std::uint32_t>(rank, "rank"));
    return list;
  }

  /// Joined by +, as a mask.
  std::uint32_t axes_of(Line& line, std::string_view names) const {
    std::uint32_t axes = 0;
    for (const std::string_view axis : split(names, '+')) {
      const auto found = std::ranges::find(program_.mesh.axes, axis, &Axis::name);
      if (found == program_.mesh.axes.end()) line.fail("unknown axis '{}'", axis);
      axes |= 1U << (found - program_.mesh.axes.begin());
    }
    return axes;
  }

  void group(Line& line) {
    const std::string name(line.word("a name"));
    const std::uint32_t axes = axes_of(line, line.word("axes"));
    if (!line.empty()) line.fail("'{}' after the axes", line.rest());
    if (program_.groups.size() >= kMostGroups) line.fail("more than {} groups", kMostGroups);
    if ((program_.groups.size() + 1) * std::uint64_t{program_.mesh.ranks()} > kMostMembers)
      line.fail("groups of more than {} members together", kMostMembers);
    program_.groups.emplace_back(name, axes, program_.mesh);
  }

  void role(Line& line) {
    Role role;
    role.name = line.word("a name");
    const std::string_view list = line.word("ranks=…");
    if (!list.starts_with("ranks=")) line.fail("expected ranks=…, found '{}'", list);
    role.ranks = ranks(line, list.substr(6));
    program_.roles.push_back(std::move(role));
    sections_.push_back(Section::none);
    tensors_.clear();
  }

  Role& current(Line& line) {
    if (program_.roles.empty()) line.fail("comes before the first role");
    return program_.roles.back();
  }

  void section(Line& line, std::string_view name) {
    Role& role = current(line);
    Section& now = sections_.back();
    const Section next = name == "prologue" ? Section::prologue : name == "body" ? Section::body : Section::epilogue;
    const bool is_next_body = next == Section::body && now == Section::body && role.size() > role.body_begin;
    const bool follows = next == Section::epilogue ? now == Section::body : now < next || is_next_body;
    if (!follows || (now == Section::none && role.size() > 0))
      line.fail("'{}' where none is expected; sections come as prologue, body, epilogue, before all instructions",
                name);
    now = next;
    if (next == Section::epilogue) role.body_end = role.size();
    if (next == Section::body) {
      if (is_next_body)
        role.next_bodies.push_back(role.size());
      else
        role.body_begin = role.size();
      const std::string_view item = line.word("steps=…");
      if (!item.starts_with("steps=")) line.fail("expected steps=…, found '{}'", item);
      const auto steps = line.number<std::int64_t>(item.substr(6), "number of steps");
      if (steps < 1 || steps > kMostSteps) line.fail("steps={} must be from 1 to {}", steps, kMostSteps);
      if (steps_ && *steps_ != steps) line.fail("steps={}, but {} in another role", steps, *steps_);
      program_.steps = *(steps_ = steps);
    }
    if (!line.empty()) line.fail("'{}' after '{}'", line.rest(), name);
  }

  /// Of the unit before it.
  void part(Line& line) {
    Role& role = current(line);
    if (role.units.empty()) line.fail("comes before the first unit");
    ParameterUnit::Part part{.name = std::string(line.word("a name"))};
    const std::string_view type = line.word("a type");
    part.whole = line.checked([&] { return tensor_spec_from(type); });
    while (!line.empty()) {
      const std::string_view item = line.word("an item");
      if (item.starts_with("on="))
        part.on = placements(line, item.substr(3));
      else
        part.initial = initial_from(line, item);
    }
    check_dims(line, part.on, part.whole.shape);
    role.units.back().parts.push_back(std::move(part));
  }

  static void check_dims(const Line& line, const std::vector<Placement>& on, const Shape& whole) {
    for (const Placement& placement : on)
      if (placement.kind == Placement::Kind::shard && placement.dim >= whole.size())
        line.fail("{} of a tensor with {} dimensions", to_string(placement), whole.size());
  }

  /// The axis of a view's along=axis.
  std::uint32_t along(Line& line) const {
    const std::string_view item = line.word("along=axis");
    const auto axis =
        std::ranges::find(program_.mesh.axes, item.substr(std::min<std::size_t>(6, item.size())), &Axis::name);
    if (!item.starts_with("along=") || axis == program_.mesh.axes.end())
      line.fail("expected along= and an axis, found '{}'", item);
    return static_cast<std::uint32_t>(axis - program_.mesh.axes.begin());
  }

  void tensor(Line& line, bool view) {
    Role& role = current(line);
    const std::string name(line.word("a name"));
    if (name == ":" || name == "->" || name == ";") line.fail("'{}' is not a tensor name", name);
    if (tensors_.contains(name)) line.fail("the tensor '{}' is there already", name);
    const std::string_view type = line.word("a type");
    const TensorSpec spec = line.checked([&] { return tensor_spec_from(type); });
    if (view) {
      const std::uint32_t owner = find_tensor(line, line.word("the owner"));
      const std::string_view offset = line.word("+offset");
      if (!offset.starts_with('+')) line.fail("expected +offset, found '{}'", offset);
      const auto bytes = line.number<std::int64_t>(offset.substr(1), "offset in bytes");
      const std::int64_t size = role.storages[role.tensors[owner].storage].bytes;
      if (bytes < 0 || bytes > size || role.tensors[owner].offset_bytes + bytes + spec.bytes() > size)
        line.fail("view '{}' reaches beyond '{}'", name, role.tensors[owner].name);
      if ((role.tensors[owner].offset_bytes + bytes) % size_of(spec.dtype) != 0)
        line.fail("view '{}' begins at byte {} of '{}', which is no multiple of the {} bytes of {}", name, bytes,
                  role.tensors[owner].name, size_of(spec.dtype), to_string(spec.dtype));
      const std::uint32_t id = tensors_[name] = role.add_view(name, spec, owner, bytes);
      if (!line.empty()) role.tensors[id].along = along(line);
      return;
    }
    const std::string_view class_name = line.word("a tensor class");
    const std::optional<TensorClass> tensor_class = kTensorClassNames.find(class_name);
    if (!tensor_class) line.fail("unknown tensor class '{}'", class_name);
    bool persistent = false;
    Initial initial;
    Shape whole;
    std::vector<Placement> on;
    std::uint32_t unit = kNone;
    while (!line.empty()) {
      const std::string_view item = line.word("an item");
      if (item == "persistent")
        persistent = true;
      else if (item.starts_with("of="))
        whole =
            line.checked([&] { return tensor_spec_from(fmt::format("{}{}", to_string(spec.dtype), item.substr(3))); })
                .shape;
      else if (item.starts_with("on="))
        on = placements(line, item.substr(3));
      else if (item.starts_with("unit="))
        unit = find_unit(line, role, item.substr(5));
      else
        initial = initial_from(line, item);
    }
    const TensorSpec all{spec.dtype, whole.empty() ? spec.shape : whole};
    if (initial.runs != nullptr && count_of(*initial.runs) != all.elements())
      line.fail("{} values for a tensor {}", count_of(*initial.runs), whole.empty() ? type : to_string(all));
    if (unit != kNone && !persistent) line.fail("unit= of a tensor that isn't persistent");
    if (whole.empty() != on.empty() || (!persistent && !on.empty()))
      line.fail("of=shape and on=placements belong together, at a persistent tensor");
    check_dims(line, on, whole);
    tensors_[name] = role.add_tensor(name, spec, *tensor_class, persistent, initial);
    role.tensors[tensors_[name]].whole = std::move(whole);
    role.tensors[tensors_[name]].on = std::move(on);
    role.tensors[tensors_[name]].unit = unit;
  }

  static std::uint32_t find_unit(const Line& line, const Role& role, std::string_view name) {
    const auto unit = std::ranges::find(role.units, name, &ParameterUnit::name);
    if (unit == role.units.end()) line.fail("unknown unit '{}'", name);
    return static_cast<std::uint32_t>(unit - role.units.begin());
  }

  Initial initial_from(Line& line, std::string_view item) const {
    if (item == "model_input") return {Initial::Kind::model_input};
    const std::vector<std::string_view> parts = split(item, '=');
    if (parts.size() == 2) {
      const std::vector<std::string_view> values = split(parts[1], ',');
      if (parts[0] == "uniform" && values.size() == 2)
        return {Initial::Kind::uniform, line.number<double>(values[0], "number"),
                line.number<double>(values[1], "number")};
      if (parts[0] == "model_input" && values.size() == 2) {
        const double center = line.number<double>(values[0], "number"),
                     bound = line.number<double>(values[1], "number");
        if (!(bound > 0)) line.fail("model_input={},{} needs a bound above 0", center, bound);
        return {Initial::Kind::model_input, center, bound};
      }
      if (parts[0] == "constant") return {Initial::Kind::constant, line.number<double>(parts[1], "number")};
      if (parts[0] == "values")
        return {.kind = Initial::Kind::runs, .runs = line.checked([&] { return runs_from(parts[1]); })};
      if (parts[0] == "model_target" || parts[0] == "model_input") {
        const auto classes = line.number<std::int64_t>(parts[1], "number of classes");
        if (classes < 1) line.fail("{}={} must be at least 1", parts[0], classes);
        return {.kind = parts[0] == "model_input" ? Initial::Kind::model_input : Initial::Kind::model_target,
                .classes = classes};
      }
    }
    line.fail(
        "unknown item '{}'; known: persistent, of=shape, on=placements, unit=name, uniform=center,bound, constant=x, "
        "values=runs, model_input, model_input=classes, model_input=center,bound, model_target=classes",
        item);
  }

  std::uint32_t find_tensor(Line& line, std::string_view name) const {
    const auto found = tensors_.find(std::string(name));
    if (found == tensors_.end()) line.fail("unknown tensor '{}'", name);
    return found->second;
  }

  void instruction(Line& line, std::string_view number) {
    Role& role = current(line);
    if (line.number<std::uint32_t>(number, "instruction number") != role.size())
      line.fail("instruction {} where {} is expected", number, role.size());
    Instruction i;
    const std::string_view kind = line.word("an instruction kind");
    i.kind = line.one_of(kInstructionKinds, kind);
    std::string_view peer_key;
    while (!line.empty()) {
      const std::string_view item = line.word("an item");
      if (item == ":") break;
      field(line, item, i, peer_key);
    }
    std::vector<std::uint32_t>* list = &i.reads;
    while (!line.empty()) {
      const std::string_view word = line.word("a tensor");
      if (word == "->") {
        list = &i.writes;
      } else if (word == ";") {
        if (line.word("free") != "free") line.fail("expected 'free' after ';'");
        list = &i.frees;
      } else {
        const std::uint32_t tensor = find_tensor(line, word);
        list->push_back(list == &i.frees ? role.tensors[tensor].storage : tensor);
      }
    }
    const bool needs_work = is_computed(i.kind), is_post = is_posted(i.kind);
    if (needs_work != (i.work != kNone)) line.fail("'{}' {} work", kind, needs_work ? "needs a" : "takes no");
    const std::string_view wanted = i.kind == InstructionKind::send         ? "to"
                                    : i.kind == InstructionKind::recv       ? "from"
                                    : i.kind == InstructionKind::collective ? "group"
                                                                            : "";
    if (peer_key != wanted)
      line.fail("'{}' {} {}=…", kind, wanted.empty() ? "takes no" : "needs", wanted.empty() ? peer_key : wanted);
    const bool has_ticket = is_post || i.kind == InstructionKind::wait;
    if (has_ticket != (i.ticket != kNone)) line.fail("'{}' {} ticket", kind, has_ticket ? "needs a" : "takes no");
    if (is_post && i.ticket > role.size())
      line.fail("opens t{}; allowed: up to t{}, the number of the instruction", i.ticket, role.size());
    const bool in_place = i.kind == InstructionKind::collective && works_in_place(i.collective);
    const bool may_only_get = in_place && i.collective == CollectiveKind::broadcast && i.reads.empty();
    if ((i.kind == InstructionKind::send || in_place) && i.reads.size() != 1 && !may_only_get)
      line.fail("'{}' reads one tensor", kind);
    if ((i.kind == InstructionKind::recv || in_place) && i.writes.size() != 1)
      line.fail("'{}' writes one tensor", kind);
    if (i.reduction != Reduction::sum && (i.kind != InstructionKind::collective || !reduces(i.collective)))
      line.fail("'{}' takes no reduction", i.kind == InstructionKind::collective ? to_string(i.collective) : kind);
    if (i.kind == InstructionKind::collective && i.reads.empty() && i.writes.empty())
      line.fail("'{}' moves nothing", kind);
    role.add(i);
  }

  void field(Line& line, std::string_view item, Instruction& i, std::string_view& peer_key) {
    if (item.starts_with('w') && item.find('=') == std::string_view::npos) {
      i.work = line.number<std::uint32_t>(item.substr(1), "work");
      if (i.work >= program_.works.size()) line.fail("work {} of {}", item, program_.works.size());
      return;
    }
    if (item.starts_with('t') && item.find('=') == std::string_view::npos) {
      i.ticket = line.number<std::uint32_t>(item.substr(1), "ticket");
      return;
    }
    const std::size_t equals = item.find('=');
    if (equals == std::string_view::npos) line.fail("'{}' is not key=value", item);
    const std::string_view key = item.substr(0, equals), value = item.substr(equals + 1);
    if (key == "node") {
      i.node = names_.add(value);
    } else if (key == "mb") {
      i.microbatch = line.number<std::int32_t>(value, "microbatch");
      if (i.microbatch < 0) line.fail("mb={} must not be negative", i.microbatch);
    } else if (key == "to" || key == "from") {
      std::tie(i.peer, i.by) = partner(line, value);
      peer_key = key;
    } else if (key == "group") {
      const auto group = std::ranges::find(program_.groups, value, &Group::name);
      if (group == program_.groups.end()) line.fail("unknown group '{}'", value);
      i.peer = static_cast<std::uint32_t>(group - program_.groups.begin());
      peer_key = key;
    } else if (key == "root") {
      i.root = line.number<std::uint32_t>(value, "root");
    } else if (key == "tag") {
      i.tag = line.number<std::uint32_t>(value, "tag");
    } else if (key == "scale") {
      i.scale = line.number<double>(value, "number");
    } else if (key == "kind") {
      i.collective = line.one_of(kCollectiveNames, value);
    } else if (key == "reduction") {
      i.reduction = line.one_of(kReductions, value);
    } else {
      line.fail("unknown key '{}'; known: node, mb, to, from, group, root, tag, scale, kind, reduction", key);
    }
  }

  /// "pp+1": an axis, and how far along it.
  std::pair<std::uint32_t, std::int32_t> partner(const Line& line, std::string_view text) const {
    const std::size_t sign = text.find_last_of("+-");
    if (sign == std::string_view::npos) line.fail("'{}' is not axis+distance or axis-distance", text);
    const auto axis = std::ranges::find(program_.mesh.axes, text.substr(0, sign), &Axis::name);
    if (axis == program_.mesh.axes.end()) line.fail("unknown axis '{}'", text.substr(0, sign));
    const auto by = line.number<std::uint32_t>(text.substr(sign + 1), "distance");
    if (by >= axis->size) line.fail("{} along {}={}", by, axis->name, axis->size);
    return {static_cast<std::uint32_t>(axis - program_.mesh.axes.begin()),
            static_cast<std::int32_t>(by) * (text[sign] == '-' ? -1 : 1)};
  }

  std::string_view text_;
  std::size_t line_ = 0;
  Program program_;
  std::unordered_map<std::string, std::uint32_t> tensors_;  // of the current role
  NameTable names_{program_.names};
  enum class Section : std::uint8_t { none, prologue, body, epilogue };
  std::vector<Section> sections_;  // by role: the last that has begun
  std::optional<std::int64_t> steps_;
};

void append_instruction(std::string& text, const Program& program, const Role& role, std::uint32_t index) {
  auto out = std::back_inserter(text);
  const Instruction i = role.at(index);
  fmt::format_to(out, "{} {}", index, to_string(i.kind));
  if (i.work != kNone) fmt::format_to(out, " w{}", i.work);
  if (i.ticket != kNone) fmt::format_to(out, " t{}", i.ticket);
  if (i.kind == InstructionKind::collective) {
    fmt::format_to(out, " kind={} group={}", to_string(i.collective), program.groups[i.peer].name);
    if (has_root(i.collective)) fmt::format_to(out, " root={}", i.root);
    if (i.reduction != Reduction::sum) fmt::format_to(out, " reduction={}", to_string(i.reduction));
  }
  if (is_message(i.kind))
    fmt::format_to(out, " {}={}{:+} tag={}", i.kind == InstructionKind::send ? "to" : "from",
                   program.mesh.axes[i.peer].name, i.by, i.tag);
  if (i.node != kNone) fmt::format_to(out, " node={}", program.names[i.node]);
  if (i.microbatch >= 0) fmt::format_to(out, " mb={}", i.microbatch);
  if (i.scale != 1) fmt::format_to(out, " scale={}", i.scale);
  if (!i.reads.empty() || !i.writes.empty() || !i.frees.empty()) text += " :";
  for (std::uint32_t tensor : i.reads) text += " " + role.tensors[tensor].name;
  if (!i.writes.empty()) text += " ->";
  for (std::uint32_t tensor : i.writes) text += " " + role.tensors[tensor].name;
  if (!i.frees.empty()) text += " ; free";
  for (std::uint32_t storage : i.frees) text += " " + role.tensors[role.storages[storage].owner].name;
  text += '\n';
}

std::string axes_text(const Mesh& mesh, std::uint32_t axes) {
  std::string text;
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (axes >> axis & 1U) text += (text.empty() ? "" : "+") + mesh.axes[axis].name;
  return text;
}

}  // namespace

std::string to_text(const Program& program) {
  std::string text = fmt::format("{}\nmodel {}\nstrategy {}\n", kFormat, program.model, program.strategy);
  if (program.threads > 1) text += fmt::format("threads {}\n", program.threads);
  text += "mesh";
  auto out = std::back_inserter(text);
  for (const Axis& axis : program.mesh.axes) {
    fmt::format_to(out, " {}={}", axis.name, axis.size);
    if (axis.rest != Rest::forbidden) fmt::format_to(out, "/{}", to_string(axis.rest));
  }
  fmt::format_to(out, "\npartition global_batch={} microbatches={}", program.global_batch, program.microbatches);
  if (!program.rows.empty()) fmt::format_to(out, " rows={}", placements_text(program.rows));
  if (program.draw_axes != 0) fmt::format_to(out, " draws={}", axes_text(program.mesh, program.draw_axes));
  fmt::format_to(out, "{}{}\n", program.one_loss ? " one_loss" : "",
                 program.broadcast_buffers ? " broadcast_buffers" : "");
  if (const auto& daso = program.daso)
    fmt::format_to(out, "daso local={} skips={} wait={} local_skips={}\n", daso->local, daso->skips, daso->wait,
                   daso->local_skips);
  for (const Group& group : program.groups)
    fmt::format_to(out, "group {} {}\n", group.name, axes_text(program.mesh, group.axes));
  for (const Work& work : program.works) fmt::format_to(out, "work {}\n", work_key(work));
  for (const Role& role : program.roles) {
    fmt::format_to(out, "role {} ranks={}\n", role.name, fmt::join(role.ranks, ","));
    for (const ParameterUnit& unit : role.units) {
      fmt::format_to(out, "unit {}\n", unit.name);
      for (const ParameterUnit::Part& part : unit.parts)
        fmt::format_to(out, "part {} {}{}{}\n", part.name, to_string(part.whole),
                       part.on.empty() ? "" : " on=" + placements_text(part.on), initial_text(part.initial));
    }
    for (std::uint32_t t = 0; t < role.tensors.size(); ++t) {
      const Tensor& tensor = role.tensors[t];
      const Storage& storage = role.storages[tensor.storage];
      if (storage.owner == t)
        fmt::format_to(
            out, "tensor {} {} {}{}{}{}{}\n", tensor.name, to_string(tensor.spec), to_string(storage.tensor_class),
            storage.persistent ? " persistent" : "",
            tensor.on.empty() ? ""
                              : fmt::format(" of=[{}] on={}", fmt::join(tensor.whole, ","), placements_text(tensor.on)),
            tensor.unit == kNone ? "" : " unit=" + role.units[tensor.unit].name, initial_text(tensor.initial));
      else
        fmt::format_to(out, "view {} {} {} +{}{}\n", tensor.name, to_string(tensor.spec),
                       role.tensors[storage.owner].name, tensor.offset_bytes,
                       tensor.along == kNone ? "" : " along=" + program.mesh.axes[tensor.along].name);
    }
    for (std::uint32_t i = 0; i <= role.size(); ++i) {
      if (program.is_periodic() || program.bodies() > 1) {
        if (i == 0 && role.body_begin > 0) text += "prologue\n";
        if (i == role.body_begin || std::ranges::binary_search(role.next_bodies, i))
          fmt::format_to(out, "body steps={}\n", program.steps);
        if (i == role.body_end) text += "epilogue\n";
      }
      if (i < role.size()) append_instruction(text, program, role, i);
    }
  }
  return text;
}

Work work_from_key(std::string_view key) {
  Line line(key, 1);
  try {
    return read_work(line);
  } catch (const ConfigError& error) {
    throw ConfigError("work '{}': {}", key, error.what());
  }
}

Program program_from_text(std::string_view text) { return Parser(text).parse(); }

}  // namespace sim
