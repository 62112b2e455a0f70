#include "sim/model/op/body.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "sim/error.hpp"

namespace sim {
namespace {

constexpr std::string_view kProducts = "products=", kOwn = "own";  // of the last fields, where there are some
constexpr std::size_t kFields = 11, kMostInputs = 30, kMostParameters = 30, kMostDepth = 8;

std::vector<std::string_view> fields(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

bool is_word(char c) { return (std::isalnum(static_cast<unsigned char>(c)) != 0) || c == '_' || c == '.'; }

/// Reads one call, character by character.
class CallReader {
 public:
  explicit CallReader(std::string_view text) : whole_(text), text_(text) {}

  Call read() {
    Call call;
    do call.results.emplace_back(word());
    while (take(','));
    need('=');
    const std::string_view op = word();
    const std::size_t dot = op.find('.');
    call.op = op.substr(0, dot);
    if (dot != std::string_view::npos) call.overload = op.substr(dot + 1);
    need('(');
    if (!take(')')) {
      do call.arguments.push_back(argument());
      while (take(','));
      need(')');
    }
    if (!text_.empty()) fail();
    return call;
  }

 private:
  [[noreturn]] void fail() const {
    throw ConfigError("'{}' is not a call of an ATen op, at '{}'", whole_, text_.empty() ? "the end" : text_);
  }
  bool take(char c) {
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }
  void need(char c) {
    if (!take(c)) fail();
  }
  std::string_view word() {
    const auto end = std::ranges::find_if_not(text_, is_word);
    const std::string_view found = text_.substr(0, static_cast<std::size_t>(end - text_.begin()));
    if (found.empty()) fail();
    text_.remove_prefix(found.size());
    return found;
  }
  Argument argument() {
    const std::size_t equals = text_.find_first_of("=,()[]");
    if (equals == std::string_view::npos || text_[equals] != '=') return value();
    const std::string key(word());
    need('=');
    Argument named = value();
    named.key = key;
    return named;
  }
  Argument value() {
    Argument made;
    if (take('[')) {
      if (++depth_ > kMostDepth) fail();
      made.kind = Argument::Kind::list;
      if (!take(']')) {
        do made.items.push_back(value());
        while (take(','));
        need(']');
      }
      --depth_;
      return made;
    }
    if (const std::optional<Argument> number = number_or_size()) return *number;
    made.word = word();
    return made;
  }
  /// "B", "BB", "T", "BT": whether they stood there; and "-1" behind B or BB.
  bool take_letters(PartSize& size) {
    size.of_batch = take('B');
    size.of_pairs = size.of_batch && take('B');
    size.of_units = !size.of_pairs && take('T');
    constexpr std::string_view kLessOne = "-1";
    if (size.of_batch && !size.of_units && text_.starts_with(kLessOne) &&
        (text_.size() == kLessOne.size() || !is_word(text_[kLessOne.size()]))) {
      text_.remove_prefix(kLessOne.size());
      size.less = 1;
    }
    return size.of_batch || size.of_units;
  }
  static constexpr std::string_view kNoEnd = "9223372036854775807", kLeast = "-9223372036854775808";  // of i64
  /// "-1", "0.5", "1e-05", "-inf", "B", "12B", "3BB", "B-1", "4BT", "L".
  std::optional<Argument> number_or_size() {
    Argument made{.kind = Argument::Kind::number};
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const auto& [name, value] :
         {std::pair{"inf", kInfinity}, {"-inf", -kInfinity}, {"nan", kInfinity - kInfinity}})
      if (text_.starts_with(name) && (text_.size() == std::strlen(name) || !is_word(text_[std::strlen(name)]))) {
        text_.remove_prefix(std::strlen(name));
        made.number = value;
        return made;
      }
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), made.number);
    const bool is_named_number = !text_.empty() && std::isalpha(static_cast<unsigned char>(text_.front())) != 0;
    if (error == std::errc() && std::isfinite(made.number) && !is_named_number) {
      const std::string_view digits = text_.substr(0, static_cast<std::size_t>(end - text_.data()));
      made.is_integral = digits.find_first_of(".e") == std::string_view::npos;
      text_.remove_prefix(digits.size());
      const bool is_size = made.is_integral && !text_.empty() && (text_.front() == 'B' || text_.front() == 'T');
      if (made.is_integral && std::abs(made.number) > 0x1p53 && (is_size || (digits != kNoEnd && digits != kLeast)))
        throw ConfigError("'{}' is too large; whole numbers up to 2^53", digits);
      if (is_size && take_letters(made.size)) {
        made.kind = Argument::Kind::size;
        made.size.count = std::llround(made.number);
      }
      return made;
    }
    const auto end_of_word = std::ranges::find_if_not(text_, is_word);
    const std::string_view letters = text_.substr(0, static_cast<std::size_t>(end_of_word - text_.begin()));
    constexpr std::array<std::string_view, 5> kSizes{"B", "BB", "T", "BT", "L"};
    if (std::ranges::find(kSizes, letters) == kSizes.end()) return std::nullopt;
    made.kind = Argument::Kind::size;
    made.size.count = 1;
    made.size.if_last = take('L');
    take_letters(made.size);
    return made;
  }

  std::string_view whole_, text_;
  std::size_t depth_ = 0;
};

/// "i12" → 12 for 'i'; −1: another name.
int index_of(std::string_view name, std::string_view letter) {
  if (!name.starts_with(letter) || name.size() == letter.size()) return -1;
  int index = -1;
  const auto [end, error] = std::from_chars(name.data() + letter.size(), name.data() + name.size(), index);
  return error == std::errc() && end == name.data() + name.size() ? index : -1;
}

bool has_last(const std::vector<Argument>& arguments) {
  return std::ranges::any_of(arguments, [](const Argument& argument) {
    return (argument.kind == Argument::Kind::size && argument.size.if_last) || has_last(argument.items);
  });
}

void collect_words(const std::vector<Argument>& arguments, std::set<std::string>& words) {
  for (const Argument& argument : arguments) {
    if (argument.kind == Argument::Kind::word) words.insert(argument.word);
    collect_words(argument.items, words);
  }
}

/// What a number is that has letters behind it, B, BB, T or BT; nullopt where it hasn't these.
std::optional<std::string_view> without(std::string_view text, std::string_view letters) {
  const std::size_t end = text.find_last_not_of("BT") + 1;
  return text.substr(end) == letters ? std::optional(text.substr(0, end)) : std::nullopt;
}

[[noreturn]] void throw_not_an_amount(std::string_view text) {
  throw ConfigError("'{}' is not an amount; expected e.g. 0+64B, 0+64B+8BB or 0+64B+2T+8BT", text);
}

double amount_number(std::string_view text, std::string_view whole) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
    throw_not_an_amount(whole);
  return value;
}

Body::Amount amount_from(std::string_view text) {
  using Amount = Body::Amount;
  using Term = std::pair<std::string_view, double Amount::*>;
  constexpr Term kFixed{"", &Amount::fixed}, kSample{"B", &Amount::per_sample}, kPair{"BB", &Amount::per_pair},
      kUnit{"T", &Amount::per_unit}, kSampleAndUnit{"BT", &Amount::per_sample_and_unit};
  static const std::map<std::size_t, std::vector<Term>> kForms{
      {2, {kFixed, kSample}}, {3, {kFixed, kSample, kPair}}, {4, {kFixed, kSample, kUnit, kSampleAndUnit}}};
  const std::vector<std::string_view> terms = fields(text, '+');
  const auto form = kForms.find(terms.size());
  if (form == kForms.end()) throw_not_an_amount(text);
  Amount amount;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const auto& [letters, of] = form->second[t];
    const std::optional<std::string_view> number = without(terms[t], letters);
    if (!number) throw_not_an_amount(text);
    amount.*of = amount_number(*number, text);
  }
  return amount;
}

class BodyReader {
 public:
  explicit BodyReader(std::string_view text) { body_.text = text; }

  Body read() {
    std::vector<std::string_view> parts = fields(body_.text, '|');
    if (parts.size() > kFields && parts.back() == kOwn) {
      body_.own_backward = true;
      parts.pop_back();
    }
    if (parts.size() > kFields && parts.back().starts_with(kProducts)) {
      read_products(parts.back().substr(kProducts.size()));
      parts.pop_back();
    }
    if (parts.size() != kFields && parts.size() != kFields + 2)
      throw ConfigError("a body has {} fields, or {} where it can be cut, found {}", kFields, kFields + 2,
                        parts.size());
    body_.name = parts[0];
    if (body_.name.empty()) throw ConfigError("a body has no name");
    const auto specs = [](std::string_view text) {
      std::vector<PartSpec> all;
      for (const std::string_view spec : fields(text, ';')) all.push_back(part_spec_from(spec));
      return all;
    };
    body_.inputs = specs(parts[1]);
    if (body_.inputs.size() > kMostInputs)
      throw ConfigError("a body has at most {} inputs, found {}", kMostInputs, body_.inputs.size());
    body_.parameters = specs(parts[2]);
    if (body_.parameters.size() > kMostParameters)
      throw ConfigError("a body has at most {} parameters, found {}", kMostParameters, body_.parameters.size());
    body_.output = part_spec_from(parts[3]);
    body_.saved = specs(parts[4]);
    for (const PartSpec& input : body_.inputs) check_batch(input, parts[1]);
    for (const PartSpec& parameter : body_.parameters) check_batch(parameter, parts[2]);
    check_batch(body_.output, parts[3]);
    body_.forward = read_calls(parts[5]);
    body_.backward = read_calls(parts[6]);
    const std::vector<std::string_view> flops = fields(parts[7], ','), bytes = fields(parts[8], ','),
                                        kernels = fields(parts[9], ',');
    if (flops.size() != 2 || bytes.size() != 2 || kernels.size() != 2)
      throw ConfigError("FLOPs, bytes and kernels are two each, of forward and backward");
    for (std::size_t pass = 0; pass < 2; ++pass) {
      body_.flops[pass] = amount_from(flops[pass]);
      body_.bytes[pass] = amount_from(bytes[pass]);
      body_.kernels[pass] = amount_number(kernels[pass], kernels[pass]);
    }
    if (parts[10] != "rows" && parts[10] != "whole") throw ConfigError("'{}' must be rows or whole", parts[10]);
    body_.by_rows = parts[10] == "rows";
    check_forward();
    find_copies();
    check_backward();
    if (parts.size() > kFields) read_units(parts[kFields], parts[kFields + 1]);
    for (const std::vector<Call>* calls : {&body_.forward, &body_.backward})
      for (const Call& call : *calls) {
        std::set<std::string> words;
        collect_words(call.arguments, words);
        body_.reads_last |= has_last(call.arguments);
        body_.reads_first |= words.contains("F");
        body_.order = std::max(body_.order, order_of(call.op));
      }
    body_.draws = std::ranges::any_of(body_.forward, [](const Call& call) { return draws(call.op); });
    check_units();
    return std::move(body_);
  }

 private:
  /// What lies between ops can be cut along the batch.
  static void check_batch(const PartSpec& spec, std::string_view text) {
    const auto many = std::ranges::count(spec.sizes, true, &PartSize::of_batch);
    if (many > 1 || std::ranges::any_of(spec.sizes, &PartSize::of_pairs))
      throw ConfigError("'{}': only one size of what ops read and give can be a multiple of the batch", text);
  }

  void read_products(std::string_view text) {
    for (const std::string_view product : fields(text, ',')) {
      const std::vector<std::string_view> parts = fields(product, ':');
      const std::optional<ProductKind> kind = parts.size() == 4 ? kProductKinds.find(parts[0]) : std::nullopt;
      if (!kind) throw ConfigError("'{}' are no products; expected e.g. matmul:f32:0+64B:0+128B", product);
      body_.products.push_back({*kind, dtype_from(parts[1]), {amount_from(parts[2]), amount_from(parts[3])}});
    }
  }

  static bool draws(std::string_view op) {
    constexpr std::array<std::string_view, 19> kOthers{"_standard_gamma",
                                                       "alpha_dropout",
                                                       "bernoulli",
                                                       "binomial",
                                                       "cauchy",
                                                       "dropout",
                                                       "exponential",
                                                       "feature_alpha_dropout",
                                                       "feature_dropout",
                                                       "geometric",
                                                       "log_normal",
                                                       "multinomial",
                                                       "native_dropout",
                                                       "normal",
                                                       "normal_functional",
                                                       "poisson",
                                                       "rrelu",
                                                       "rrelu_with_noise",
                                                       "uniform"};
    return op.starts_with("rand") || std::ranges::find(kOthers, op) != kOthers.end();
  }

  static DimensionOrder order_of(std::string_view op) {
    constexpr std::array<std::string_view, 3> kMove{"permute", "transpose", "t"};
    constexpr std::array<std::string_view, 6> kView{"view",       "_unsafe_view", "reshape",
                                                    "as_strided", "view_as_real", "view_as_complex"};
    if (std::ranges::find(kView, op) != kView.end()) return DimensionOrder::needed;
    return std::ranges::find(kMove, op) != kMove.end() ? DimensionOrder::changed : DimensionOrder::kept;
  }

  static std::vector<Call> read_calls(std::string_view text) {
    std::vector<Call> calls;
    for (const std::string_view call : fields(text, ';')) calls.push_back(CallReader(call).read());
    return calls;
  }

  void read_units(std::string_view units, std::string_view sums) {
    constexpr std::string_view kUnits = "units=", kPositions = "positions=", kSums = "sums=";
    body_.has_positions = units.starts_with(kPositions);
    if ((!body_.has_positions && !units.starts_with(kUnits)) || !sums.starts_with(kSums))
      throw ConfigError("'{}|{}' must be e.g. units=12|sums=o, or positions=64|sums=gp0", units, sums);
    const std::string_view number = units.substr(units.find('=') + 1);
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), body_.units);
    if (error != std::errc() || end != number.data() + number.size() || body_.units < 2)
      throw ConfigError("'{}' must be a whole number, at least 2", units);
    sums.remove_prefix(kSums.size());
    for (const std::string_view name : fields(sums, ',')) {
      const int input = index_of(name, "gi"), parameter = index_of(name, "gp");
      if (name == "o" && body_.output.units_dim() < 0)
        body_.sums_output = true;
      else if (input >= 0 && static_cast<std::size_t>(input) < body_.inputs.size() &&
               body_.inputs[input].units_dim() < 0)
        body_.sums_inputs |= 1U << input;
      else if (parameter >= 0 && static_cast<std::size_t>(parameter) < body_.parameters.size() &&
               body_.parameters[parameter].units_dim() < 0)
        body_.sums_parameters |= 1U << parameter;
      else
        throw ConfigError("'{}' is no sum: o, or gradients gi0, gp0, … of what isn't cut", name);
    }
  }

  /// Sizes in T are for what says how many units there are; then the output is cut, or a sum.
  void check_units() const {
    const auto is_cut = [](const PartSpec& spec) { return spec.units_dim() >= 0; };
    const bool any = is_cut(body_.output) || std::ranges::any_of(body_.inputs, is_cut) ||
                     std::ranges::any_of(body_.parameters, is_cut);
    if (any != (body_.units > 1)) throw ConfigError("sizes in T, and units= and sums=, need each other");
    if (any && is_cut(body_.output) == body_.sums_output) throw ConfigError("the output must be cut, or a sum");
  }

  /// Every result has a name of its own, which isn't a value's that is there already.
  static void define(const std::vector<Call>& calls, std::set<std::string>& known) {
    for (const Call& call : calls)
      for (const std::string& result : call.results)
        if (result != "_" && !known.insert(result).second) throw ConfigError("the value '{}' is made twice", result);
  }

  void check_forward() const {
    std::set<std::string> known;
    for (std::size_t i = 0; i < body_.inputs.size(); ++i) known.insert(fmt::format("i{}", i));
    for (std::size_t p = 0; p < body_.parameters.size(); ++p) known.insert(fmt::format("p{}", p));
    define(body_.forward, known);
    if (!known.contains("o")) throw ConfigError("the forward doesn't make the output 'o'");
    for (std::size_t s = 0; s < body_.saved.size(); ++s)
      if (!known.contains(fmt::format("s{}", s))) throw ConfigError("the forward doesn't make the saved 's{}'", s);
  }

  void find_copies() {
    body_.copies.assign(body_.saved.size(), false);
    for (const Call& call : body_.forward)
      if (const int saved = index_of(call.results[0], "s");
          call.op == "_to_copy" && saved >= 0 && std::cmp_less(saved, body_.saved.size()) && !call.arguments.empty() &&
          index_of(call.arguments[0].word, "p") >= 0)
        body_.copies[static_cast<std::size_t>(saved)] = true;
  }

  void check_backward() {
    if (body_.backward.empty()) return;  // nobody needs a gradient of what it makes
    std::set<std::string> words, known;
    for (const Call& call : body_.backward) collect_words(call.arguments, words);
    const auto reads = [&](std::string_view letter, std::size_t count, std::vector<int>& indices) {
      for (std::size_t i = 0; i < count; ++i)
        if (words.contains(fmt::format("{}{}", letter, i))) indices.push_back(static_cast<int>(i));
    };
    reads("i", body_.inputs.size(), body_.reads_inputs);
    reads("p", body_.parameters.size(), body_.reads_parameters);
    reads("s", body_.saved.size(), body_.reads_saved);
    body_.reads_output = words.contains("o");
    define(body_.backward, known);
    for (const std::string& name : known)
      if (const int input = index_of(name, "gi"); input >= 0) {
        if (static_cast<std::size_t>(input) >= body_.inputs.size())
          throw ConfigError("the backward gives '{}', but there are {} inputs", name, body_.inputs.size());
        body_.input_grads |= 1U << input;
      }
    for (std::size_t p = 0; p < body_.parameters.size(); ++p)
      if (!known.contains(fmt::format("gp{}", p)))
        throw ConfigError("the backward doesn't give the parameter's gradient 'gp{}'", p);
  }

  Body body_;
};

}  // namespace

namespace {

/// The product, or the nearest number that fits.
std::int64_t times(std::int64_t a, std::int64_t b) {
  using Limits = std::numeric_limits<std::int64_t>;
  std::int64_t product = 0;
  return !__builtin_mul_overflow(a, b, &product) ? product : (a < 0) == (b < 0) ? Limits::max() : Limits::min();
}

}  // namespace

std::int64_t PartSize::at(const Extent& extent) const {
  std::int64_t size = if_last && !extent.is_last ? 0 : count;
  for (const std::int64_t factor :
       {of_batch ? extent.batch : 1, of_pairs ? extent.batch : 1, of_units ? extent.units : 1})
    size = times(size, factor);
  return std::max(size, std::numeric_limits<std::int64_t>::min() + less) - less;
}

TensorSpec PartSpec::at(const Extent& extent) const {
  TensorSpec spec{dtype, {}};
  for (const PartSize& size : sizes) spec.shape.push_back(size.at(extent));
  return spec;
}

TensorSpec PartSpec::in_module(const Extent& extent) const {
  TensorSpec spec = at(extent);
  if (blocks_dim < 0) return spec;
  const auto next = spec.shape.begin() + blocks_dim + 1;
  *(next - 1) = times(*(next - 1), *next);
  spec.shape.erase(next);
  return spec;
}

int PartSpec::batch_dim() const {
  const auto found = std::ranges::find(sizes, true, &PartSize::of_batch);
  return found == sizes.end() ? -1 : static_cast<int>(found - sizes.begin());
}

int PartSpec::units_dim() const {
  const auto found = std::ranges::find(sizes, true, &PartSize::of_units);
  return found == sizes.end() ? -1 : static_cast<int>(found - sizes.begin());
}

PartSpec part_spec_from(std::string_view text) {
  const std::size_t open = text.find('[');
  if (open == std::string_view::npos || !text.ends_with(']'))
    throw ConfigError("'{}' is not a tensor type; expected e.g. f32[B,64]", text);
  PartSpec spec{dtype_from(text.substr(0, open)), {}};
  const auto add = [&](std::string_view size) {
    PartSize& made = spec.sizes.emplace_back();
    made.of_units = size.ends_with('T');
    made.of_batch = size.ends_with('B');
    made.of_pairs = size.ends_with("BB");
    if (made.of_units || made.of_batch) size.remove_suffix(made.of_pairs ? 2 : 1);
    made.count = 1;
    if ((made.of_units || made.of_batch) && size.empty()) return;
    const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), made.count);
    if (error != std::errc() || end != size.data() + size.size() || made.count < 1)
      throw ConfigError(
          "'{}' is not a tensor type; sizes are positive integers or multiples of the batch (4B) or the units (4T)",
          text);
  };
  for (const std::string_view size : fields(text.substr(open + 1, text.size() - open - 2), ',')) {
    const std::size_t cross = size.find('x');
    if (cross != std::string_view::npos) {
      if (spec.blocks_dim >= 0 || !size.ends_with('T'))
        throw ConfigError("'{}': only one size can have blocks, and these are multiples of the units: 3x64T", text);
      spec.blocks_dim = static_cast<int>(spec.sizes.size());
      add(size.substr(0, cross));
    }
    add(cross == std::string_view::npos ? size : size.substr(cross + 1));
  }
  if (std::ranges::count(spec.sizes, true, &PartSize::of_units) > 1)
    throw ConfigError("'{}': only one size can be a multiple of the units", text);
  return spec;
}

const Body& body_from(std::string_view text) {
  static std::mutex mutex;
  static std::map<std::string, std::unique_ptr<const Body>, std::less<>> known;
  const std::scoped_lock lock(mutex);
  if (const auto found = known.find(text); found != known.end()) return *found->second;
  Body body;
  try {
    body = BodyReader(text).read();
  } catch (const ConfigError& error) {
    throw ConfigError("body '{}': {}", text.substr(0, std::min(text.find('|'), std::size_t{60})), error.what());
  }
  return *known.emplace(std::string(text), std::make_unique<const Body>(std::move(body))).first->second;
}

const Body& body_in(const Body& body, Dtype from, Dtype to) {
  if (from == to) return body;
  std::string text = body.text;
  const auto replace = [&text](std::string_view before, std::string_view after) {
    for (std::size_t at = text.find(before); at != std::string::npos;) {
      const bool begins = at == 0 || !is_word(text[at - 1]),
                 ends = at + before.size() == text.size() || !is_word(text[at + before.size()]);
      if (begins && ends) text.replace(at, before.size(), after);
      at = text.find(before, at + (begins && ends ? after : before).size());
    }
  };
  replace(to_string(from), to_string(to));
  if (from == Dtype::f32 && to == Dtype::f64) replace("c64", "c128");
  if (from == Dtype::bf16 && to == Dtype::f16)
    replace("3.3895313892515355e+38", "65504.0");  // torch.finfo(x.dtype).max
  return body_from(text);
}

}  // namespace sim
