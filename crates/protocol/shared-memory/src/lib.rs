//! Immutable shared memory that one process of a machine writes and others read in place, and the socket that passes it
//! between them. The agent and the client use it; this crate does not interpret the content.
//!
//! The memory is a sealed anonymous file (`memfd_create`): the kernel rejects writing, shrinking and growing, even by
//! the creator. A mapped file in a shared folder was rejected: a process with write access could truncate it, and the
//! system kills a reader that touches a truncated page. The memory exists as long as a process maps it. Afterwards
//! the kernel frees it, even if that process crashed.

mod descriptor_channel;
mod heap_trimming;
mod sealed_memory;

pub use descriptor_channel::{DescriptorChannel, MAX_DESCRIPTORS, MAX_FRAME};
pub use heap_trimming::{trim, used};
pub use sealed_memory::{SealedMemory, SharedMemoryError};
