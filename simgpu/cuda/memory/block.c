/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the memory at an address: each kind of memory looks up its own ranges. */
#include "simgpu/cuda/memory/block.h"

#include "simgpu/cuda/memory/vmm.h"
#include "simgpu/cuda/pools/pool.h"

bool sim_block_at(uint64_t address, struct sim_block *ret)
{
	struct sim_range *r = sim_range_at(address);

	if (!r)
		return false;
	*ret = (struct sim_block){
		.range = r, .base = r->base, .bytes = r->bytes, .device = r->device, .accessible = true
	};
	switch (r->kind) {
	case SIM_RANGE_PLAIN:
	case SIM_RANGE_MANAGED:
	case SIM_RANGE_IMPORT:
	case SIM_RANGE_GRAPH:
		ret->base += r->skip;
		return address - ret->base < r->bytes;
	case SIM_RANGE_SLAB: {
		uint32_t bit = (uint32_t)((address - r->base) / r->object_bytes);

		ret->base = r->base + (uint64_t)bit * r->object_bytes;
		ret->bytes = r->object_bytes;
		return r->bitmap[bit / 64] >> (bit & 63) & 1;
	}
	case SIM_RANGE_POOL:
		return sim_pool_block(r, address, &ret->base, &ret->bytes);
	case SIM_RANGE_RESERVED:
		return sim_vmm_block(r, address, ret);
	default:
		return false; /* arrays and backing have no address of their own */
	}
}

bool sim_range_covers(uint64_t address, uint64_t bytes)
{
	while (bytes > 0) {
		struct sim_block block;

		if (!sim_block_at(address, &block) || !block.accessible)
			return false;
		block.range->touched = true;
		uint64_t left = block.base + block.bytes - address;

		if (left >= bytes)
			return true;
		if (block.range->kind != SIM_RANGE_RESERVED)
			return false; /* only adjacent mappings form one block of memory */
		address += left;
		bytes -= left;
	}
	return true;
}
