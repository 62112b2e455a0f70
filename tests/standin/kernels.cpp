// Every operator of the stand-in: the CPU's kernel, on aliases of the same memory, when the stream's turn has come.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_local_scalar_dense_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/standin/device.hpp"

namespace standin {
namespace {

using Values = torch::jit::Stack;
constexpr c10::DispatchKeySet kCpu(c10::DispatchKey::CPU), kMine(c10::DispatchKey::PrivateUse1);

/// The same memory as CPU tensors that don't own it. The same tensor has the same alias: TensorIterator asks is_same().
class Aliases {
 public:
  at::Tensor operator()(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
    at::Tensor& alias = tensors_[tensor.unsafeGetTensorImpl()];
    if (alias.defined()) return alias;
    const c10::Storage& own = tensor.storage();
    c10::Storage& storage = storages_[own.unsafeGetStorageImpl()];
    if (!storage)
      storage = c10::Storage(c10::Storage::use_byte_size_t(), own.nbytes(), c10::DataPtr(own.mutable_data(), c10::kCPU),
                             nullptr, false);
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), kCpu, tensor.dtype());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return alias = at::Tensor(std::move(impl));
  }

 private:
  std::unordered_map<const void*, at::Tensor> tensors_;
  std::unordered_map<const void*, c10::Storage> storages_;
};

/// The value with `change` applied to every tensor in it.
template <class Change>
c10::IValue map_tensors(const c10::IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

template <class Visit>
void each_tensor(const c10::IValue& value, Visit visit) {
  map_tensors(value, [&](const at::Tensor& tensor) {
    if (tensor.defined()) visit(tensor);
    return tensor;
  });
}

// ---- The shapes of what an operator makes ----

/// Undefined where the operator returns none.
struct Shape {
  bool is_defined = false;
  std::vector<std::int64_t> sizes, strides;
  at::ScalarType dtype{};
};

std::string signature(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  std::ostringstream text;
  text << op.operator_name();
  for (const c10::IValue& value : arguments) {
    bool has_tensors = false;
    each_tensor(value, [&](const at::Tensor& tensor) {
      has_tensors = true;
      text << '|' << tensor.sizes() << tensor.strides() << tensor.scalar_type();
    });
    if (!has_tensors) text << '|' << (value.isTensor() ? std::string("undefined") : c10::str(value));
  }
  return text.str();
}

/// By the CPU's kernel on zeros of the same shapes, once for each signature: Meta kernels have no answer for many.
std::vector<Shape> shapes_of(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<std::string, std::vector<Shape>>;
  const std::string key = signature(op, arguments);
  const std::lock_guard lock(mutex);
  if (const auto entry = known.find(key); entry != known.end()) return entry->second;
  Values values;
  for (const c10::IValue& value : arguments)
    values.push_back(map_tensors(value, [](const at::Tensor& tensor) {
      return tensor.defined()
                 ? at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU)).zero_()
                 : tensor;
    }));
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  op.redispatchBoxed(kCpu, &values);
  std::vector<Shape> shapes;
  for (const c10::IValue& value : values) {
    Shape& shape = shapes.emplace_back();
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) shape = {true, tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type()};
  }
  return known.emplace(key, shapes).first->second;
}

// ---- What it reads and writes ----

void add_access(std::vector<Access>& accesses, const at::Tensor& tensor, bool writes) {
  if (!tensor.defined() || !tensor.is_privateuseone() || tensor.numel() == 0) return;
  std::int64_t last = 0;
  for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  accesses.push_back({begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size()), writes});
}

bool is_written(const c10::OperatorHandle& op, std::size_t argument) {
  const c10::AliasInfo* alias = op.schema().arguments()[argument].alias_info();
  // The running statistics, of which its schema says nothing.
  const bool silently = op.schema().name() == "aten::native_batch_norm" && (argument == 3 || argument == 4);
  return silently || (alias != nullptr && alias->isWrite());
}

/// Boxed, for all operators that aren't below.
void run_later(const c10::OperatorHandle& op, Values* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  const c10::ArrayRef<c10::IValue> arguments(stack->data() + stack->size() - count, count);
  std::vector<Access> accesses;
  Aliases alias;
  auto aliases = std::make_shared<Values>();
  for (std::size_t a = 0; a < count; ++a) {
    each_tensor(arguments[a], [&](const at::Tensor& tensor) { add_access(accesses, tensor, is_written(op, a)); });
    aliases->push_back(map_tensors(arguments[a], [&](const at::Tensor& tensor) { return alias(tensor); }));
  }

  Values results;
  auto targets = std::make_shared<std::vector<at::Tensor>>(schema.returns().size());
  std::vector<Shape> shapes;
  for (std::size_t k = 0; k < schema.returns().size(); ++k) {
    const c10::Argument& made = schema.returns()[k];
    TORCH_CHECK(made.type()->isSubtypeOf(*c10::TensorType::get()), "stand-in: ", op.operator_name(), " returns ",
                made.type()->str());
    if (made.alias_info() != nullptr) {
      TORCH_CHECK(made.alias_info()->isWrite(), "stand-in: ", op.operator_name(), " makes a view and isn't registered");
      for (std::size_t a = 0; a < count; ++a) {
        const c10::AliasInfo* info = schema.arguments()[a].alias_info();
        if (info != nullptr && *info == *made.alias_info()) results.push_back(arguments[a]);
      }
      continue;
    }
    if (shapes.empty()) shapes = shapes_of(op, arguments);
    const Shape& shape = shapes.at(k);
    if (!shape.is_defined) {
      results.emplace_back(at::Tensor());
      continue;
    }
    const at::Tensor result =
        at::empty_strided(shape.sizes, shape.strides, at::TensorOptions(kType).dtype(shape.dtype));
    add_access(accesses, result, true);
    (*targets)[k] = alias(result);
    results.emplace_back(result);
  }

  enqueue(current_stream(), c10::str(op.operator_name()), accesses, [op, aliases, targets] {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    Values values = *aliases;
    op.redispatchBoxed(kCpu, &values);
    for (std::size_t k = 0; k < targets->size(); ++k)
      if ((*targets)[k].defined()) (*targets)[k].copy_(values[k].toTensor());
    return true;
  });
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

/// Its size would be known only when it has run.
void refuse(const c10::OperatorHandle& op, Values* /*stack*/) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "stand-in: the shape that ", op.operator_name(), " makes depends on data");
}

// ---- Operators that do more, or less, than run a kernel ----

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device, std::optional<bool> /*pin_memory*/,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, c10::GetAllocator(kType), kMine, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> /*pin_memory*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(kType), kMine, c10::dtype_or_default(dtype));
}

/// CUDA has no graph that copies from or to memory of the host that isn't pinned, or that the host waits for.
void refuse_captured(const char* what) {
  TORCH_CHECK(capture_on(current_stream()) == 0, "stand-in: ", what, " while stream ", current_stream(), " captures");
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  if (from.is_cpu() || to.is_cpu()) refuse_captured("a copy from or to the host's memory");
  Aliases alias;
  const at::Tensor source = from.is_cpu() ? from.clone() : alias(from);  // pageable memory is staged
  const at::Tensor target = alias(to);
  std::vector<Access> accesses;
  add_access(accesses, from, false);
  add_access(accesses, to, true);
  enqueue(current_stream(), "copy", accesses, [source, target] {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    target.copy_(source);
    return true;
  });
  if (to.is_cpu() && !non_blocking) synchronize(current_stream());
  return to;
}

at::Scalar item(const at::Tensor& self) {
  refuse_captured("the host reads a value");
  std::vector<Access> accesses;
  add_access(accesses, self, false);
  enqueue(current_stream(), "item", accesses, [] { return true; });
  synchronize(current_stream());
  return at::native::_local_scalar_dense_cpu(Aliases()(self));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_later>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  library.impl("view", TORCH_FN(at::native::view));
  library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  library.impl("_copy_from", TORCH_FN(copy_from));
  library.impl("_local_scalar_dense", TORCH_FN(item));
  // Composite kernels would run on this device and end in others that nobody has (convolution_overrideable).
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_later>());
  for (const char* name : {"nonzero", "masked_select", "_unique2"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

}  // namespace standin
