/* SPDX-License-Identifier: GPL-2.0 */
/* Mixes numbers as crates/base/model/src/arith.rs does. */
#ifndef FAIRMESH_MIX_H
#define FAIRMESH_MIX_H

#include "kernel_abi.h"

INLINE u64 mix64(u64 x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

#endif
