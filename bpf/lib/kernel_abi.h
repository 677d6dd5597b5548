/* SPDX-License-Identifier: GPL-2.0 */
/* The part of the kernel's interface that these programs use: contexts, helpers, flags, as include/uapi/linux/bpf.h
 * numbers and lays them out. Declared here so that a build needs a compiler and no headers. */
#ifndef FAIRMESH_KERNEL_ABI_H
#define FAIRMESH_KERNEL_ABI_H

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
/* A function with a stack frame of its own: all frames of a call may have 512 bytes together. */
#define OWN_FRAME static __attribute__((noinline))
#define MAP_UINT(name, value) int(*name)[value]
#define MAP_TYPE(name, type) typeof(type) *name

#define NETWORK16(x) __builtin_bswap16(x)
#define NETWORK32(x) __builtin_bswap32(x)

enum {
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_ARRAY = 6,
	MAP_LRU_HASH = 9,
	MAP_SOCKHASH = 18,
	MAP_SK_STORAGE = 24,
	MAP_RINGBUF = 27,
};

enum {
	F_NO_PREALLOC = 1,
	F_CLONE = 512,
	F_MMAPABLE = 1024,
	F_STORAGE_CREATE = 1,
	F_INGRESS = 1,
	F_NO_EXIST = 1,
	F_NO_WAKEUP = 1,
	PIN_BY_NAME = 1,
};

enum {
	SOCK_STREAM = 1,
	IPPROTO_TCP = 6,
	TCP_ESTABLISHED = 1,
	TCP_CLOSE = 7,
	TCP_LISTEN = 10,
	NON_BLOCKING = 04000,
	FAMILY_INET = 2,
	FAMILY_INET6 = 10,
	USER_DATA_PSOCK = 4,
	SOCK_OPS_ACTIVE_ESTABLISHED = 4,
	SOCK_OPS_PASSIVE_ESTABLISHED = 5,
	SOCK_OPS_STATE = 10,
	SOCK_OPS_LISTEN = 11,
	STATE_CALLBACK = 4,
	SK_DROP = 0,
	SK_PASS = 1,
	CONNECT_REFUSE = 0,
	CONNECT_ALLOW = 1,
	CONNECTION_REFUSED = 111,
};

struct bpf_sock {
	u32 bound_dev_if, family, type, protocol, mark, priority;
	u32 src_ip4;
	u32 src_ip6[4];
	u32 src_port; /* host byte order */
	u16 dst_port;
	u16 : 16;
	u32 dst_ip4;
	u32 dst_ip6[4];
	u32 state;
};

struct bpf_sock_addr {
	u32 user_family;
	u32 user_ip4;
	u32 user_ip6[4];
	u32 user_port;
	u32 family, type, protocol;
	u32 msg_src_ip4;
	u32 msg_src_ip6[4];
	struct bpf_sock *sk __attribute__((aligned(8)));
};

struct bpf_sock_ops {
	u32 op;
	u32 args[4];
	u32 family;
	u32 remote_ip4, local_ip4;
	u32 remote_ip6[4], local_ip6[4];
	u32 remote_port; /* network byte order */
	u32 local_port;  /* host byte order */
	u32 is_fullsock;
	u32 statistics[23];
	u64 bytes_received, bytes_acked;
	struct bpf_sock *sk __attribute__((aligned(8)));
};

struct sk_msg_md {
	void *data __attribute__((aligned(8)));
	void *data_end __attribute__((aligned(8)));
	u32 family;
	u32 remote_ip4, local_ip4;
	u32 remote_ip6[4], local_ip6[4];
	u32 remote_port, local_port;
	u32 size;
	struct bpf_sock *sk __attribute__((aligned(8)));
};

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static u64 (*time_ns)(void) = (void *)5;
static u32 (*prandom_u32)(void) = (void *)7;
static u64 (*current_task)(void) = (void *)35;
static u64 (*socket_cookie)(void *context) = (void *)46;
static long (*set_callbacks)(struct bpf_sock_ops *ops, int which) = (void *)59;
static long (*sock_hash_update)(struct bpf_sock_ops *ops, void *map, void *key, u64 flags) = (void *)70;
static long (*msg_redirect_hash)(struct sk_msg_md *message, void *map, void *key, u64 flags) = (void *)71;
static long (*msg_pull_data)(struct sk_msg_md *message, u32 start, u32 end, u64 flags) = (void *)63;
static long (*msg_push_data)(struct sk_msg_md *message, u32 start, u32 length, u64 flags) = (void *)90;
static long (*msg_pop_data)(struct sk_msg_md *message, u32 start, u32 length, u64 flags) = (void *)91;
static long (*sock_release)(void *sock) = (void *)86;
static void *(*sk_storage_get)(void *map, void *sk, void *value, u64 flags) = (void *)107;
static void *(*to_tcp_sock)(void *sock) = (void *)137;
static long (*ring_output)(void *ring, const void *data, u64 size, u64 flags) = (void *)130;
static u64 (*netns_cookie)(void *context) = (void *)122;
static int (*set_result)(int result) = (void *)187;
#ifdef FAIRMESH_NATIVE
typedef long (*loop_step)(u32 at, void *context);

static long loop(u32 count, void *callback, void *context, u64 flags)
{
	for (u32 at = 0; at < count; at++)
		if (((loop_step)callback)(at, context))
			return at + 1;
	return count;
}

static long probe_read_kernel(void *to, u32 size, const void *from)
{
	__builtin_memcpy(to, from, size);
	return 0;
}
#else
static long (*probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*loop)(u32 count, void *callback, void *context, u64 flags) = (void *)181;
#endif

#endif
