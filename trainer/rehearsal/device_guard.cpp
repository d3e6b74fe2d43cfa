// A CUDA device that computes nothing, for a torch without CUDA or a machine without a GPU.
//
// Fake tensors have a shape, a dtype and a device, and no values. Autograd asks the device of a
// tensor for a guard, for streams and for the number of devices, and attention asks which kernel
// runs. With these answers fake tensors of CUDA take the paths that they take on a GPU.
#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

struct FakeGuard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return Device(DeviceType::CUDA, 0); }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Stream getStream(Device) const noexcept override {
    return Stream(Stream::DEFAULT, getDevice());
  }
  Stream exchangeStream(Stream) const noexcept override { return getStream(getDevice()); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, FakeGuard);

// The kernel of attention that an H100 takes: flash for 16-bit inputs of equal width without a mask,
// the memory-efficient kernel for others whose rows are aligned, and plain matrix products else.
int64_t attention_kernel(
    const at::Tensor& query,
    const at::Tensor& key,
    const at::Tensor& value,
    const std::optional<at::Tensor>& mask,
    double dropout,
    bool is_causal,
    std::optional<double>,
    bool is_grouped) {
  const auto& context = at::globalContext();
  if (query.dim() != 4) {
    return static_cast<int64_t>(sdp::SDPBackend::math);
  }
  bool is_narrow = query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16;
  bool fits = query.sym_size(-1) == value.sym_size(-1) && query.sym_size(-1) <= 256;
  // Fewer heads of keys need enable_gqa, which the memory-efficient kernel does not take.
  sdp::sdp_params params{query, key, value, mask, dropout, is_causal, is_grouped};
  fits = fits && sdp::check_batch_size_and_num_heads_dense<true>(params, false);
  if (fits && is_narrow && !mask.has_value() && context.userEnabledFlashSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::flash_attention);
  }
  int alignment = is_narrow ? 8 : 4;
  bool is_aligned = query.sym_size(-1) % alignment == 0 && value.sym_size(-1) % alignment == 0;
  bool is_even = sdp::check_batch_size_and_num_heads_dense<false>(params, false);
  if (is_aligned && is_even && context.userEnabledMemEfficientSDP()) {
    return static_cast<int64_t>(sdp::SDPBackend::efficient_attention);
  }
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

} // namespace

namespace at {

struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void*) const override { return true; }
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};
C10_REGISTER_CLASS_WITH_PRIORITY(
    CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, CUDAHooks);

namespace native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &attention_kernel);
} // namespace native

} // namespace at

namespace c10d {

// DDP times its exchange on each device.
struct FakeTimer final : Timer {
  explicit FakeTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};
C10_REGISTER_TYPED_CLASS_WITH_PRIORITY(
    TimerRegistry, c10::kCUDA, c10::REGISTRY_PREFERRED, FakeTimer);

} // namespace c10d
