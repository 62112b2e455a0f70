// Plays the calls of a body through ATen's dispatcher, by name.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/version.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/op/attention.hpp"
#include "backend/op/op.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

using Kind = sim::Argument::Kind;
using Stack = torch::jit::Stack;

constexpr std::int32_t kNobody = -1;

/// An argument of a call, ready but for values and how much is played.
struct ReadyArgument {
  enum class From : std::uint8_t { constant, format, value, size, sizes, values, device } from = From::constant;
  c10::IValue constant = {};
  std::int32_t value = kNobody;           // slot
  std::vector<sim::PartSize> sizes = {};  // one, or a list
  std::vector<std::int32_t> values = {};  // slots
  bool is_optional_list = false;          // Tensor?[]
};

struct ReadyCall {
  enum class Exact : std::uint8_t { same, dropout, dropout_backward, filled, in_order } exact = Exact::same;
  double filled_with = 0;
  int filled_from = -1;                 // or with this argument
  Substitute on_accelerator = nullptr;  // what is played there in its place
  c10::OperatorHandle op;
  std::vector<ReadyArgument> arguments;
  std::vector<std::int32_t> results;  // slots
  std::vector<std::int32_t> last;     // values that nobody reads after it
};

/// The calls of one pass. Slots: first what it is given, then what it makes.
struct ReadyPass {
  std::vector<ReadyCall> calls;
  std::size_t slots = 0;
  std::vector<std::int32_t> writes;  // slots, in the order of the instruction's writes
};

/// What a body can name: dtypes and memory formats, as the numbers that the dispatcher takes.
std::optional<std::int64_t> number_of_word(const std::string& word) {
  using Format = at::MemoryFormat;
  static const std::map<std::string, std::int64_t> kWords{
      {"contiguous_format", static_cast<std::int64_t>(Format::Contiguous)},
      {"preserve_format", static_cast<std::int64_t>(Format::Preserve)},
      {"channels_last", static_cast<std::int64_t>(Format::ChannelsLast)},
      {"channels_last_3d", static_cast<std::int64_t>(Format::ChannelsLast3d)},
      // Dtypes of what stays inside a body.
      {"c64", static_cast<std::int64_t>(at::kComplexFloat)},
      {"c128", static_cast<std::int64_t>(at::kComplexDouble)},
      {"u8", static_cast<std::int64_t>(at::kByte)},
      {"i8", static_cast<std::int64_t>(at::kChar)},
      {"i16", static_cast<std::int64_t>(at::kShort)}};
  if (const auto format = kWords.find(word); format != kWords.end()) return format->second;
  try {
    return static_cast<std::int64_t>(scalar_type(sim::dtype_from(word)));
  } catch (const sim::ConfigError&) {
    return std::nullopt;
  }
}

/// What a random number is where nothing is left to chance: nothing is dropped (stochastic depth floors its keep rate
/// plus a number below 1), noise is always the same. The importer's check draws so, too.
std::optional<double> exact_draw(std::string_view op) {
  static const std::map<std::string_view, double> kDraws{{"bernoulli", 1},
                                                         {"rand", 1 - 0x1p-24},
                                                         {"rand_like", 1 - 0x1p-24},
                                                         {"uniform", 1 - 0x1p-24},
                                                         {"randn", 0},
                                                         {"randn_like", 0},
                                                         {"normal", 0},
                                                         {"normal_functional", 0},
                                                         {"cauchy", 0},
                                                         {"exponential", 1},
                                                         {"geometric", 1},
                                                         {"log_normal", 1},
                                                         {"multinomial", 0},
                                                         {"randint", 0},  // or what it draws from
                                                         {"randint_like", 0},
                                                         {"randperm", 0}};  // 0, 1, 2, …
  const auto found = kDraws.find(op);
  return found == kDraws.end() ? std::nullopt : std::optional(found->second);
}

/// 2⁶³ − 1, the end of a slice that has none, isn't a double.
std::int64_t whole(double number) {
  return number >= 0x1p63 ? std::numeric_limits<std::int64_t>::max() : static_cast<std::int64_t>(number);
}

class PassReader {
 public:
  PassReader(const sim::Body& body, const std::vector<sim::Call>& calls) : body_(body), calls_(calls) {}

  ReadyPass read(const std::vector<std::string>& given, const std::vector<std::string>& written) {
    for (const std::string& name : given) slots_.emplace(name, slot());
    for (const sim::Call& call : calls_) pass_.calls.push_back(ready(call));
    for (const std::string& name : written) pass_.writes.push_back(slot_of(name, "what it makes"));
    find_last_readers();
    return std::move(pass_);
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw sim::ConfigError("body '{}': {}", body_.name, fmt::format(text, std::forward<Args>(args)...));
  }

  std::int32_t slot() { return static_cast<std::int32_t>(pass_.slots++); }

  std::int32_t slot_of(const std::string& name, std::string_view where) const {
    const auto found = slots_.find(name);
    if (found == slots_.end()) fail("unknown value '{}' in {}", name, where);
    return found->second;
  }

  ReadyCall ready(const sim::Call& call) {
    const std::string name = "aten::" + call.op;
    const auto op = c10::Dispatcher::singleton().findSchema({name, call.overload});
    if (!op)
      fail("LibTorch {} has no op {}{}{}; import the model with its PyTorch", TORCH_VERSION, name,
           call.overload.empty() ? "" : ".", call.overload);
    ReadyCall made{.on_accelerator = attention_of_accelerator(call.op), .op = *op};
    if (call.op == "native_dropout") made.exact = ReadyCall::Exact::dropout;
    if (call.op == "native_dropout_backward") made.exact = ReadyCall::Exact::dropout_backward;
    if (const std::optional<double> value = exact_draw(call.op)) {
      made.exact = ReadyCall::Exact::filled;
      made.filled_with = *value;
    }
    const std::vector<c10::Argument>& schema = op->schema().arguments();
    std::map<std::string, const sim::Argument*> keyed;
    std::size_t position = 0;
    for (const sim::Argument& argument : call.arguments) {
      if (!argument.key.empty())
        keyed[argument.key] = &argument;
      else if (position < schema.size())
        keyed[schema[position++].name()] = &argument;
      else
        fail("{} takes {} arguments", name, schema.size());
    }
    if (call.op == "randperm") made.exact = ReadyCall::Exact::in_order;
    if (call.op.starts_with("randint")) made.filled_from = op->schema().argumentIndexWithName("low").value_or(-1);
    for (const c10::Argument& expected : schema) {
      const auto found = keyed.find(expected.name());
      const bool is_device = expected.name() == "device";
      if (found == keyed.end() && is_device) {
        made.arguments.push_back({.from = ReadyArgument::From::device});
      } else if (found == keyed.end()) {
        if (!expected.default_value()) fail("{} needs '{}'", name, expected.name());
        made.arguments.push_back({.constant = *expected.default_value()});
      } else {
        made.arguments.push_back(argument(*found->second, expected.type(), name + "'s " + expected.name()));
        keyed.erase(found);
      }
    }
    if (!keyed.empty()) fail("{} has no argument '{}'", name, keyed.begin()->first);
    for (const std::string& result : call.results) {
      made.results.push_back(result == "_" ? kNobody : slot());
      if (result != "_") slots_.emplace(result, made.results.back());
    }
    return made;
  }

  ReadyArgument argument(const sim::Argument& given, const c10::TypePtr& type, const std::string& where) const {
    if (const auto optional = type->cast<c10::OptionalType>()) {
      if (given.kind == Kind::word && given.word == "none") return {};
      return argument(given, optional->getElementType(), where);
    }
    if (const auto list = type->cast<c10::ListType>()) return list_of(given, list->getElementType(), where);
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        if (given.kind != Kind::word) break;
        return {.from = ReadyArgument::From::value, .value = slot_of(given.word, where)};
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        if (given.kind == Kind::size) return {.from = ReadyArgument::From::size, .sizes = {given.size}};
        if (given.kind == Kind::number && given.is_integral) return {.constant = whole(given.number)};
        if (given.kind == Kind::word)
          if (const std::optional<std::int64_t> number = number_of_word(given.word))
            return {
                .from = given.word == "contiguous_format" ? ReadyArgument::From::format : ReadyArgument::From::constant,
                .constant = *number};
        break;
      case c10::TypeKind::FloatType:
        if (given.kind == Kind::number) return {.constant = given.number};
        break;
      case c10::TypeKind::NumberType:
        if (given.kind == Kind::size) return {.from = ReadyArgument::From::size, .sizes = {given.size}};
        if (given.kind == Kind::number && given.is_integral) return {.constant = whole(given.number)};
        if (given.kind == Kind::number) return {.constant = given.number};
        [[fallthrough]];
      case c10::TypeKind::BoolType:
        if (given.kind == Kind::word && (given.word == "true" || given.word == "false"))
          return {.constant = given.word == "true"};
        break;
      case c10::TypeKind::StringType:
        if (given.kind == Kind::word) return {.constant = given.word};
        break;
      default:
        break;
    }
    fail("{} is no {}", where, type->str());
  }

  ReadyArgument list_of(const sim::Argument& given, const c10::TypePtr& element, const std::string& where) const {
    std::vector<sim::Argument> items = given.items;
    if (given.kind != Kind::list) items = {given};  // int[2] takes one number, too
    const bool is_optional = element->kind() == c10::TypeKind::OptionalType;
    const c10::TypePtr of = is_optional ? element->cast<c10::OptionalType>()->getElementType() : element;
    if (of->kind() == c10::TypeKind::TensorType) {
      ReadyArgument made{.from = ReadyArgument::From::values, .is_optional_list = is_optional};
      for (const sim::Argument& item : items)
        made.values.push_back(is_optional && item.word == "none" ? kNobody : slot_of(item.word, where));
      return made;
    }
    if (of->kind() == c10::TypeKind::IntType || of->kind() == c10::TypeKind::SymIntType) {
      ReadyArgument made{.from = ReadyArgument::From::sizes};
      for (const sim::Argument& item : items) {
        if (item.kind == Kind::size)
          made.sizes.push_back(item.size);
        else if (item.kind == Kind::number && item.is_integral)
          made.sizes.push_back({whole(item.number)});
        else
          fail("{} takes whole numbers", where);
      }
      return made;
    }
    if (of->kind() == c10::TypeKind::BoolType) {
      c10::List<bool> flags;
      for (const sim::Argument& item : items) flags.push_back(item.word == "true");
      return {.constant = flags};
    }
    if (of->kind() == c10::TypeKind::FloatType) {
      c10::List<double> numbers;
      for (const sim::Argument& item : items) numbers.push_back(item.number);
      return {.constant = numbers};
    }
    fail("{}: lists of {} aren't known", where, of->str());
  }

  void find_last_readers() {
    std::vector<bool> read(pass_.slots, false);
    for (const std::int32_t write : pass_.writes) read[static_cast<std::size_t>(write)] = true;
    for (auto call = pass_.calls.rbegin(); call != pass_.calls.rend(); ++call) {
      const auto touch = [&](std::int32_t value) {
        if (value == kNobody || read[static_cast<std::size_t>(value)]) return;
        read[static_cast<std::size_t>(value)] = true;
        call->last.push_back(value);
      };
      for (const std::int32_t result : call->results) touch(result);
      for (const ReadyArgument& argument : call->arguments) {
        touch(argument.value);
        std::ranges::for_each(argument.values, touch);
      }
    }
  }

  const sim::Body& body_;
  const std::vector<sim::Call>& calls_;
  ReadyPass pass_;
  std::map<std::string, std::int32_t> slots_;
};

std::vector<std::string> numbered(std::string_view letter, std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(fmt::format("{}{}", letter, i));
  return names;
}

void append(std::vector<std::string>& to, const std::vector<std::string>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::vector<std::string> numbered(std::string_view letter, const std::vector<int>& indices) {
  std::vector<std::string> names;
  for (const int i : indices) names.push_back(fmt::format("{}{}", letter, i));
  return names;
}

ReadyPass ready_forward(const sim::Body& body) {
  std::vector<std::string> given = numbered("i", body.inputs.size()), written{"o"};
  append(given, numbered("p", body.parameters.size()));
  append(written, numbered("s", body.saved.size()));
  if (body.reads_first) given.emplace_back("F");
  return PassReader(body, body.forward).read(given, written);
}

ReadyPass ready_backward(const sim::Body& body) {
  std::vector<std::string> given{"g"}, written;
  append(given, numbered("i", body.reads_inputs));
  append(given, numbered("p", body.reads_parameters));
  if (body.reads_output) given.emplace_back("o");
  append(given, numbered("s", body.reads_saved));
  if (body.reads_first) given.emplace_back("F");
  for (std::size_t i = 0; i < body.inputs.size(); ++i)
    if (body.input_grads >> i & 1U) written.push_back(fmt::format("gi{}", i));
  append(written, numbered("gp", body.parameters.size()));
  return PassReader(body, body.backward).read(given, written);
}

/// The pass of a body, made once per thread.
const ReadyPass& pass_of(const sim::Body& body, sim::Pass pass) {
  thread_local std::unordered_map<const sim::Body*, std::unique_ptr<ReadyPass>> forwards, backwards;
  std::unique_ptr<ReadyPass>& known = (pass == sim::Pass::forward ? forwards : backwards)[&body];
  if (!known)
    known = std::make_unique<ReadyPass>(pass == sim::Pass::forward ? ready_forward(body) : ready_backward(body));
  return *known;
}

/// What of a call comes out where verified runs must not depend on chance: nothing is dropped.
void play_exactly(const ReadyCall& call, Stack& stack) {
  if (call.exact == ReadyCall::Exact::same) return call.op.callBoxed(stack);
  if (call.exact == ReadyCall::Exact::filled) {
    const double with = call.filled_from < 0
                            ? call.filled_with
                            : static_cast<double>(stack.at(static_cast<std::size_t>(call.filled_from)).toInt());
    call.op.callBoxed(stack);
    stack.at(0).toTensor().fill_(with);
    return;
  }
  if (call.exact == ReadyCall::Exact::in_order) {
    call.op.callBoxed(stack);
    const at::Tensor order = stack.at(0).toTensor();
    order.copy_(at::arange(order.size(0)));
    return;
  }
  const at::Tensor x = stack.at(0).toTensor();
  stack.clear();
  stack.emplace_back(x.clone());  // of the backward: the gradient
  if (call.exact == ReadyCall::Exact::dropout) stack.emplace_back(at::ones_like(x, at::kBool));
}

bool reads_channels_last(const sim::OpInstance& op) {
  return std::ranges::any_of(op.inputs, &sim::TensorSpec::channels_last);
}

class Playing {
 public:
  Playing(const ReadyPass& pass, const sim::OpInstance& op, std::span<const at::Tensor> given, bool is_exact)
      : pass_(pass),
        extent_(op.extent()),
        is_exact_(is_exact),
        keeps_order_(reads_channels_last(op) && op.body->order != sim::DimensionOrder::needed),
        values_(given.begin(), given.end()) {
    for (const at::Tensor& tensor : given)
      if (tensor.defined()) device_ = tensor.device();
    if (reads_channels_last(op) && !keeps_order_)
      for (at::Tensor& tensor : values_)
        if (tensor.defined() && tensor.dim() == 4) tensor = tensor.contiguous();
    values_.resize(pass.slots);
  }

  void play() {
    for (const ReadyCall& call : pass_.calls) {
      stack_.clear();
      for (const ReadyArgument& argument : call.arguments) stack_.push_back(value_of(argument));
      if (call.on_accelerator != nullptr && !device_.is_cpu())
        call.on_accelerator(stack_);
      else if (is_exact_)
        play_exactly(call, stack_);
      else
        call.op.callBoxed(stack_);
      take_results(call);
      for (const std::int32_t value : call.last) at(value) = at::Tensor();
    }
  }

  [[nodiscard]] at::Tensor& at(std::int32_t slot) { return values_[static_cast<std::size_t>(slot)]; }

 private:
  c10::IValue value_of(const ReadyArgument& argument) {
    using From = ReadyArgument::From;
    switch (argument.from) {
      case From::constant:
        return argument.constant;
      case From::format:
        return keeps_order_ ? c10::IValue(static_cast<std::int64_t>(at::MemoryFormat::Preserve)) : argument.constant;
      case From::value:
        return at(argument.value);
      case From::size:
        return argument.sizes[0].at(extent_);
      case From::sizes: {
        std::vector<std::int64_t> sizes;
        for (const sim::PartSize& size : argument.sizes) sizes.push_back(size.at(extent_));
        return sizes;
      }
      case From::values: {
        if (!argument.is_optional_list) {
          c10::List<at::Tensor> list;
          for (const std::int32_t value : argument.values) list.push_back(at(value));
          return list;
        }
        c10::List<std::optional<at::Tensor>> list;
        for (const std::int32_t value : argument.values)
          list.push_back(value == kNobody ? std::nullopt : std::optional(at(value)));
        return list;
      }
      case From::device:
        return device_;
    }
    return {};
  }

  /// A list of tensors counts as so many results.
  void take_results(const ReadyCall& call) {
    std::size_t next = 0;
    const auto take = [&](const at::Tensor& tensor) {
      if (next < call.results.size() && call.results[next] != kNobody) at(call.results[next]) = tensor;
      ++next;
    };
    for (const c10::IValue& result : stack_) {
      if (result.isTensor())
        take(result.toTensor());
      else if (result.isTensorList())
        for (const at::Tensor& tensor : result.toTensorList()) take(tensor);
      else
        ++next;
    }
    stack_.clear();
  }

  const ReadyPass& pass_;
  const sim::Extent extent_;
  const bool is_exact_, keeps_order_;
  std::vector<at::Tensor> values_;
  Stack stack_;
  at::Device device_ = at::kCPU;
};

/// Which of a pass's writes lie so, of those with four dimensions; empty where no input does.
std::vector<bool> writes_channels_last(const sim::Work& work) {
  const sim::OpInstance& op = work.op;
  if (!reads_channels_last(op)) return {};
  const bool kept = op.keeps_channels_last();
  if (work.pass == sim::Pass::forward) return std::vector<bool>(1 + op.body->saved.size(), kept);
  std::vector<bool> writes;
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (op.body->input_grads >> i & 1U) writes.push_back(op.inputs[i].channels_last);
  writes.resize(writes.size() + op.body->parameters.size(), kept);
  return writes;
}

void aten(const sim::Work& work, const Operands& operands) {
  const ReadyPass& pass = pass_of(*work.op.body, work.pass);
  Playing playing(pass, work.op, operands.reads, operands.is_exact);
  playing.play();
  const std::vector<bool> channels_last = writes_channels_last(work);
  for (std::size_t w = 0; w < pass.writes.size(); ++w) {
    operands.writes[w] = std::move(playing.at(pass.writes[w]));
    if (!channels_last.empty() && operands.writes[w].dim() == 4)
      operands.writes[w] = operands.writes[w].contiguous(channels_last[w] ? at::MemoryFormat::ChannelsLast
                                                                          : at::MemoryFormat::Contiguous);
  }
}

/// Of a body whose backward isn't its forward's derivative: for autograd, too, it is that backward.
class OwnBackward : public torch::autograd::Function<OwnBackward> {
 public:
  using Context = torch::autograd::AutogradContext;
  /// The op, which the backward outlives.
  struct Op : torch::CustomClassHolder {
    explicit Op(sim::OpInstance of) : op(std::move(of)) {}
    sim::OpInstance op;
  };

  /// `given`: inputs and parameters.
  static at::Tensor forward(Context* context, const c10::intrusive_ptr<Op>& of, at::TensorList given) {
    const sim::Body& body = *of->op.body;
    const ReadyPass& pass = pass_of(body, sim::Pass::forward);
    Playing playing(pass, of->op, given, /*is_exact=*/true);
    playing.play();
    std::vector<at::Tensor> read;  // as ready_backward has them
    for (const int i : body.reads_inputs) read.push_back(given[static_cast<std::size_t>(i)]);
    for (const int p : body.reads_parameters) read.push_back(given[body.inputs.size() + static_cast<std::size_t>(p)]);
    if (body.reads_output) read.push_back(playing.at(pass.writes[0]));
    for (const int s : body.reads_saved) read.push_back(playing.at(pass.writes[1 + static_cast<std::size_t>(s)]));
    context->save_for_backward(read);
    context->saved_data["op"] = c10::IValue::make_capsule(of);
    return playing.at(pass.writes[0]);
  }

  static torch::autograd::variable_list backward(Context* context, const torch::autograd::variable_list& gradients) {
    const auto of = context->saved_data["op"].toCapsule();
    const sim::OpInstance& op = static_cast<const Op&>(*of).op;
    const sim::Body& body = *op.body;
    std::vector<at::Tensor> given{gradients[0].contiguous()};
    for (const at::Tensor& tensor : context->get_saved_variables()) given.push_back(tensor);
    const ReadyPass& pass = pass_of(body, sim::Pass::backward);
    Playing playing(pass, op, given, /*is_exact=*/true);
    playing.play();
    torch::autograd::variable_list found(1);  // none of the op itself
    auto write = pass.writes.begin();
    for (std::size_t i = 0; i < body.inputs.size(); ++i)
      found.push_back((body.input_grads >> i & 1U) != 0 ? playing.at(*write++) : at::Tensor());
    while (write != pass.writes.end()) found.push_back(playing.at(*write++));
    return found;
  }
};

at::Tensor aten_reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  std::vector<at::Tensor> all(given.inputs.begin(), given.inputs.end());
  all.insert(all.end(), given.parameters.begin(), given.parameters.end());
  for (std::size_t i = 0; i < all.size(); ++i)  // what the module reads detached
    if (i < given.inputs.size() ? (op.body->input_grads >> i & 1U) == 0 : op.body->backward.empty())
      all[i] = all[i].detach();
  const auto format = memory_format(op.signature().output);
  if (op.body->own_backward && !op.body->backward.empty())
    return OwnBackward::apply(c10::make_intrusive<OwnBackward::Op>(op), at::TensorList(all)).contiguous(format);
  const ReadyPass& pass = pass_of(*op.body, sim::Pass::forward);
  Playing playing(pass, op, all, /*is_exact=*/true);
  playing.play();
  return playing.at(pass.writes[0]).contiguous(format);
}

}  // namespace

bool draws(const sim::OpInstance& op) { return op.body != nullptr && op.body->draws; }

OpKernel aten_kernel() { return {"aten", aten, aten_reference}; }

}  // namespace backend
