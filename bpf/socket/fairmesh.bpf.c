/* SPDX-License-Identifier: GPL-2.0 */
/* The programs of the kernel form. One file includes the others, so that one object is loaded. */
#include "connect.h"
#include "respond.h"
#include "send.h"
#include "short_cut.h"

char LICENSE[] SEC("license") = "GPL";
