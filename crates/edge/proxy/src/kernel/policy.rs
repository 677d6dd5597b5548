//! Builds the kernel's policy from the records of a service.

use fairmesh_calls::{ServiceName, forwarding::ExportedService};
use fairmesh_kernel::{ArmTarget, KernelSender, Policy, program_clock};

use crate::kernel::{attached_maps::Attached, published_services::Publication};

impl Attached {
    /// The other services that this service's splits use, if it is published.
    pub(super) fn backends(&self, name: &ServiceName) -> Vec<ServiceName> {
        match self.published().get(name) {
            Some(Publication::Published(service)) => service.backends().clone(),
            Some(Publication::Failed(_)) | None => Vec::new(),
        }
    }

    fn arm_target(&self, backend: &ServiceName) -> ArmTarget {
        let key = match self.published().get(backend) {
            Some(Publication::Published(service)) => service.key.get().copied(),
            Some(Publication::Failed(_)) | None => None,
        };
        key.map_or(ArmTarget::Absent, ArmTarget::Published)
    }
}

/// The policy by which the kernel routes and picks. `None` if no block of statistics is free.
pub(super) fn policy_of<'a>(
    attached: &Attached,
    sender: &KernelSender,
    exported: &'a ExportedService,
) -> Option<Policy<'a>> {
    let block = exported.share_counts(|block| sender.counts_in(block), || sender.take_block())?;
    attached.note_sharing(exported.stats());
    let now = u64::try_from(program_clock().as_nanos()).unwrap_or(u64::MAX);
    let arms = exported.routes.arms.iter().map(|arm| match &arm.backend.service {
        own if own == exported.name() => ArmTarget::Own,
        other => attached.arm_target(other),
    });
    Some(Policy {
        origin: now.wrapping_sub(exported.now()),
        block: block.position(),
        numbers: exported.numbers,
        routes: &exported.routes,
        arms: arms.collect(),
    })
}
