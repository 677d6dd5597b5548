//! Lets the kernel send requests: the eBPF programs of `bpf/`, their attachment to cgroups, and the maps
//! shared with the proxy.
//!
//! *Callers* and *servers* are programs in attached cgroups. A *link* is a caller's connection to the proxy, a
//! *slot* is a pooled connection to an endpoint, and an *arm* is a backend of a split. On the *short cut*, data
//! goes from one socket of this machine directly to the queue of another one, without TCP.
//!
//! Beside this, [`Redirector`] redirects packets to the address that replicas of a gateway share.
//!
//! The crate lies beneath `proxy` and `gateway` and contains no HTTP; with the mesh it shares only the numbers that a pick
//! needs. clang compiles the programs when this crate is built, and the binary contains them. Programs and
//! maps are pinned in a BPF file system, so that they outlive the proxy and the command that attached them.
//! libbpf was rejected: it brings libelf (LGPL) and zlib, while aya needs no C library.

mod attach;
mod bpf_object;
mod bpf_pins;
mod caller_links;
mod caller_read_probe;
mod cgroup;
mod cgroup_in_flight;
mod cgroup_watch;
mod command_lock;
mod completed_calls;
mod connection_slots;
mod container;
mod ended_cgroups;
mod error;
mod forwarding_sockets;
mod free_positions;
mod ipv6_numbers;
mod map_layout;
mod mapped_array;
mod network_namespace;
mod permits;
mod pinned_links;
mod proxy_maps;
mod published_services;
mod redirector;
mod send_maps;
mod socket_owner;
mod stats_blocks;
mod status;
mod support_check;
mod tcp_only_programs;

pub use attach::{Attachments, Detached, Selection, attach, detach};
pub use bpf_pins::DEFAULT_PINS;
pub use caller_links::{Link, Settled};
pub use cgroup::{CgroupState, enter_cgroup, mounted_cgroup2, own_cgroup};
pub use cgroup_watch::CgroupWatch;
pub use completed_calls::{COMPLETED_AT_ONCE, CompletedCall};
pub use connection_slots::{EndpointSlots, SentRequest, Slot, program_clock};
pub use container::{Container, ContainerSocket};
pub use ended_cgroups::{Ending, end_attachment, is_attached};
pub use error::KernelError;
pub use map_layout::{Counter, MAX_REQUEST};
pub use permits::{MAX_FIELDS, Permit};
pub use proxy_maps::{Destination, ProxyMaps, own_attachment};
pub use published_services::{ArmTarget, Policy, PolicyKey, PublishedPolicy};
pub use redirector::{DEFAULT_ENTRY_PINS, PacketCounts, PacketHook, Redirector, Redirects};
pub use send_maps::KernelSender;
pub use socket_owner::{SocketOwner, listener_owner, peer_owner};
pub use status::{Attachment, Counters, Listening, Status, listening, status};
pub use support_check::{Check, probe};
pub use tcp_only_programs::left_programs;
