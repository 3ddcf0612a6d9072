/* Address ranges that memory is mapped into later. Part of the ninguang SDK; the rules of ng.h hold.
 * All sizes and places are multiples of the granularity. Contents of newly mapped memory are undefined.
 */
#ifndef NG_VIRTUAL_MEMORY_H_
#define NG_VIRTUAL_MEMORY_H_
#include "ng.h"
#ifdef __cplusplus
extern "C" {
#endif

NG_API ngResult ngMemGetGranularity(int32_t device, uint64_t* bytes);
NG_API ngResult ngMemAddressReserve(int32_t device, uint64_t bytes, void** address);
NG_API ngResult ngMemAddressFree(int32_t device, void* address, uint64_t bytes); /* a whole range, with no memory in it */
NG_API ngResult ngMemMap(int32_t device, void* address, uint64_t bytes);   /* no part of it is mapped yet */
NG_API ngResult ngMemUnmap(int32_t device, void* address, uint64_t bytes); /* all of it is, by however many calls */

#ifdef __cplusplus
}
#endif
#endif /* NG_VIRTUAL_MEMORY_H_ */
