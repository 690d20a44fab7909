/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of every door, the intercepted calls through which work reaches the GPU; see throttle.h. */
#ifndef SLUICE_DOOR_H
#define SLUICE_DOOR_H

#include "interpose/compute/throttle.h"

/* The `_ptsz` doors use the calling thread's own stream where the plain ones use the legacy stream. */
static inline CUstream own_stream(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

/* The body of every door. `CALL` is the driver's call, an expression; the macro hides repetition only. */
#define DOOR(PASS, KIND, HANDLE, SHAPE_PTR, STREAM, CALL)                                                              \
	({                                                                                                             \
		CUresult result_;                                                                                      \
		struct throttle_ticket ticket_;                                                                        \
		if (PASS(KIND, HANDLE, SHAPE_PTR)) {                                                                   \
			result_ = CALL;                                                                                \
		} else {                                                                                               \
			result_ = throttle_before(&ticket_, HANDLE, SHAPE_PTR, STREAM);                                \
			if (result_ == CUDA_SUCCESS) {                                                                 \
				result_ = CALL;                                                                        \
				throttle_after(KIND, &ticket_, result_);                                               \
			}                                                                                              \
		}                                                                                                      \
		result_;                                                                                               \
	})
#define RARELY_THROUGH_GATE(...) DOOR(throttle_pass_rare, THROTTLE_LAUNCH, __VA_ARGS__)
#define COPY_THROUGH_GATE(...) DOOR(throttle_pass_rare, THROTTLE_COPY, __VA_ARGS__)

#endif
