// What torch's generic guards, streams and events call, and what makes CUDA its accelerator.
#pragma once

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "fake_memory.h"
#include "fake_streams.h"

namespace fake_cuda {

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    set_device(device.index());
    return before;
  }
  Device getDevice() const override { return {DeviceType::CUDA, current_device}; }
  void setDevice(Device device) const override { set_device(device.index()); }
  void uncheckedSetDevice(Device device) const noexcept override {
    try {
      set_device(device.index());
    } catch (const c10::Error&) {
      // As its name says.
    }
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(device_count());
  }

  Stream getStream(Device device) const override { return current_stream(device.index()); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getStreamFromGlobalPool(Device device, bool) const override {
    return pooled_stream(device);
  }
  Stream getNewStream(Device device, int) const override { return pooled_stream(device); }
  Stream exchangeStream(Stream stream) const override {
    handle_of(stream);
    const Stream before = current_stream(stream.device_index());
    current_streams[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override { return handle_of(stream); }
  bool queryStream(const Stream& stream) const override {
    return stub().query_stream(handle_of(stream)) != kNotReady;
  }
  void synchronizeStream(const Stream& stream) const override { synchronize(stream); }
  void synchronizeDevice(const DeviceIndex) const override { synchronize_all(); }
  bool isStreamCapturing(const Stream& stream) const override {
    int status = 0;
    STUB(is_capturing, handle_of(stream), &status);
    return status != 0;
  }

  void record(void** event, const Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    attach();
    if (*event == nullptr) STUB(create_event, event, 2);
    STUB(record_event, *event, handle_of(stream));
  }
  void block(void* event, const Stream& stream) const override {
    if (event == nullptr) return;
    attach();
    STUB(stream_wait_event, handle_of(stream), event, 0);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || stub().query_event(event) != kNotReady;
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) STUB(synchronize_event, event);
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    if (event != nullptr) stub().destroy_event(event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    allocator().record(data, stream);
  }
};

// Makes CUDA torch's accelerator: autograd asks for it, and so do `with torch.Stream()` and
// torch.accelerator. Found by its name.
struct CUDAHooks final : public at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(device_count()); }
  int getNumGPUs() const override { return device_count(); }
  DeviceIndex current_device() const override { return fake_cuda::current_device; }
  DeviceIndex getCurrentDevice() const override { return fake_cuda::current_device; }
  void setCurrentDevice(DeviceIndex index) const override { set_device(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    const DeviceIndex before = fake_cuda::current_device;
    set_device(index);
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
  void deviceSynchronize(DeviceIndex) const override { synchronize_all(); }
  bool isPinnedPtr(const void* data) const override { return pinned().owns(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned(); }
};

}  // namespace fake_cuda
