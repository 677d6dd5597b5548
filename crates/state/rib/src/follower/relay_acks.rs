use tokio_util::sync::CancellationToken;

use super::FollowerHandle;
use crate::Node;

/// Relays acknowledgements upstream until `stopping`. A revision is acknowledged as soon as all watchers of the node
/// have applied it, across any number of processes. A request for an acknowledgement from the upstream is passed on
/// to the watchers.
pub async fn relay_acks(node: Node, upstream: FollowerHandle, stopping: CancellationToken) {
    let (mut acks, mut revisions, mut ack_requested) =
        (node.acks(), node.revisions(), upstream.ack_requested());
    loop {
        acks.mark_unchanged();
        revisions.mark_unchanged();
        if node.store().is_some() {
            upstream.ack(node.applied_by_all());
        }
        tokio::select! {
            Ok(()) = acks.changed() => {}
            Ok(()) = revisions.changed() => {}
            Ok(()) = ack_requested.changed() => {
                let wanted = *ack_requested.borrow_and_update();
                if let Some(wanted) = wanted.filter(|wanted| node.store() == Some(wanted.store)) {
                    node.request_ack(wanted.number);
                }
            }
            () = node.grace_expired() => {}
            () = stopping.cancelled() => return,
        }
    }
}
