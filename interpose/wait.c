/* SPDX-License-Identifier: Apache-2.0 */
/* The calls that wait for work, or poll for it: a good moment to settle the accounts of both caps. */
#include "interpose/compute/throttle.h"
#include "interpose/driver/driver.h"
#include "interpose/memory/charge.h"
#include "interpose/memory/pool.h"
#include "interpose/tenant/moves.h"
#include "interpose/tenant/guest.h"

/* The application waited for its work: counters, records and pools are brought up to date. */
static void waited(bool whole_context)
{
	throttle_settle(whole_context);
	pool_synchronised();
	overhead_follow(guest_current_device(), OVERHEAD_EVERY_NS);
}

CUresult cuStreamSynchronize(CUstream stream)
{
	if (!driver.cuStreamSynchronize)
		return CUDA_ERROR_NOT_FOUND;
	away_wait();
	CUresult result = driver.cuStreamSynchronize(stream);

	waited(false);
	return result;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
	if (!driver.cuStreamSynchronize_ptsz)
		return CUDA_ERROR_NOT_FOUND;
	away_wait();
	CUresult result = driver.cuStreamSynchronize_ptsz(stream);

	waited(false);
	return result;
}

CUresult cuEventSynchronize(CUevent event)
{
	if (!driver.cuEventSynchronize)
		return CUDA_ERROR_NOT_FOUND;
	away_wait();
	CUresult result = driver.cuEventSynchronize(event);

	waited(false);
	return result;
}

CUresult cuCtxSynchronize(void)
{
	if (!driver.cuCtxSynchronize)
		return CUDA_ERROR_NOT_FOUND;
	away_wait();
	CUresult result = driver.cuCtxSynchronize();

	waited(result == CUDA_SUCCESS);
	return result;
}

/* CUDA 13: any context, not only the current one, so it is weaker evidence about the work that this thread has
 * queued. */
CUresult cuCtxSynchronize_v2(CUcontext context)
{
	CUcontext current = NULL;

	if (!driver.cuCtxSynchronize_v2)
		return CUDA_ERROR_NOT_FOUND;
	away_wait();
	CUresult result = driver.cuCtxSynchronize_v2(context);
	bool own = driver.cuCtxGetCurrent && driver.cuCtxGetCurrent(&current) == CUDA_SUCCESS &&
	           (!context || context == current);

	waited(result == CUDA_SUCCESS && own);
	return result;
}

CUresult cuStreamQuery(CUstream stream)
{
	if (!driver.cuStreamQuery)
		return CUDA_ERROR_NOT_FOUND;
	CUresult result = driver.cuStreamQuery(stream);

	if (result == CUDA_SUCCESS)
		throttle_polled();
	return result;
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
	if (!driver.cuStreamQuery_ptsz)
		return CUDA_ERROR_NOT_FOUND;
	CUresult result = driver.cuStreamQuery_ptsz(stream);

	if (result == CUDA_SUCCESS)
		throttle_polled();
	return result;
}

CUresult cuEventQuery(CUevent event)
{
	if (!driver.cuEventQuery)
		return CUDA_ERROR_NOT_FOUND;
	CUresult result = driver.cuEventQuery(event);

	if (result == CUDA_SUCCESS)
		throttle_polled();
	return result;
}
