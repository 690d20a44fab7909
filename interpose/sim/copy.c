#include <string.h>
#include "interpose/sim/arena.h"
#include "interpose/sim/object.h"
bool sim_pool_free(uint64_t a) { (void)a; return false; }
SIM_API CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void *s, size_t n)
{
	SIM_CALL_CONTEXT(c);
	if (!sim_range_covers(d, n)) return CUDA_ERROR_INVALID_VALUE;
	sim_wait(c, c->gpu->ring[c->index].head);
	memcpy(sim_host_address(d), s, n);
	return CUDA_SUCCESS;
}
SIM_API CUresult cuMemcpyDtoH_v2(void *d, CUdeviceptr s, size_t n)
{
	SIM_CALL_CONTEXT(c);
	if (!sim_range_covers(s, n)) return CUDA_ERROR_INVALID_VALUE;
	sim_wait(c, c->gpu->ring[c->index].head);
	memcpy(d, sim_host_address(s), n);
	return CUDA_SUCCESS;
}
