/* Extension "virtual memory": address ranges that memory is mapped into piece by piece. With it the host keeps one
 * growing range for each stream instead of many separate allocations, so that memory freed in pieces is whole again.
 *
 * Only for devices with FL_CAP_POINTERS. Mapped places are used like those of memory_alloc: by kernels, copies, fill
 * and peer copies, and they count as used in memory_info. An operand may cross from one mapped piece into the next. The
 * rules of adapter.h hold: statuses, last_error, threads, append-only. All five functions are required.
 */
#ifndef TORCH_FL_EXT_VIRTUAL_MEMORY_H_
#define TORCH_FL_EXT_VIRTUAL_MEMORY_H_

#include "torch_fl/adapter.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fl_virtual_memory {
  fl_extension head; /* type FL_EXTENSION_VIRTUAL_MEMORY */

  /* Bytes that ranges are mapped in, a power of two and a multiple of the device's alignment. [any]
   * UNAVAILABLE or UNIMPLEMENTED: not on this device; the host uses memory_alloc alone. */
  fl_status (*granularity)(int32_t device, uint64_t* out_bytes);

  /* Reserves `bytes` (a multiple of the granularity) of address space, at a multiple of the granularity; no memory.
   * [any] The host asks for somewhat more than the device's memory, once per stream and pool, and does without this
   * extension for the stream where that fails with OUT_OF_MEMORY. */
  fl_status (*range_reserve)(int32_t device, uint64_t bytes, void** out_address);

  /* Gives a whole range back as range_reserve returned it. Nothing is mapped in it any more. [any] */
  fl_status (*range_free)(int32_t device, void* address, uint64_t bytes);

  /* Puts memory behind a part of a reserved range, nothing of which is mapped yet: address and bytes are multiples of
   * the granularity. Contents are undefined. [any] May block. OUT_OF_MEMORY: nothing of it was mapped. */
  fl_status (*range_map)(int32_t device, void* address, uint64_t bytes);

  /* Takes the memory of a mapped part away, which need not be what one range_map mapped: any multiple of the
   * granularity, also across several. It comes when no queued work uses it. [any] May block. */
  fl_status (*range_unmap)(int32_t device, void* address, uint64_t bytes);
} fl_virtual_memory;

#ifdef __cplusplus
}
#endif
#endif /* TORCH_FL_EXT_VIRTUAL_MEMORY_H_ */
