//! Immutable shared memory: written by one process of a machine, read in place by others; and the socket that passes
//! it. It is used by the agent and the client, and does not interpret the content.
//!
//! The memory is a sealed anonymous file (`memfd_create`): the kernel rejects writing, shrinking and growing, for its
//! creator too. A mapped file in a shared folder was rejected: a process with write access could truncate it, and a
//! reader that touches a truncated page is killed by the system. The memory exists as long as a process maps it; the
//! kernel then frees it, in whatever way that process ended.

mod channel;
mod heap;
mod memory;

pub use channel::{DescriptorChannel, MAX_DESCRIPTORS, MAX_FRAME};
pub use heap::{trim, used};
pub use memory::{SealedMemory, SharedMemoryError};
