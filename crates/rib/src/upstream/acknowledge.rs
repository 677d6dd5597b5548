use tokio_util::sync::CancellationToken;

use super::Handle;
use crate::Node;

/// Tells the upstream of a node what everybody who watches the node has applied, as soon as they have, until `stopping`:
/// so acknowledgements travel through any number of processes.
pub async fn acknowledge(node: Node, upstream: Handle, stopping: CancellationToken) {
    let (mut acks, mut revisions) = (node.acks(), node.revisions());
    loop {
        acks.mark_unchanged();
        revisions.mark_unchanged();
        if node.store().is_some() {
            upstream.ack(node.applied_by_all());
        }
        tokio::select! {
            Ok(()) = acks.changed() => {}
            Ok(()) = revisions.changed() => {}
            () = node.given_up() => {}
            () = stopping.cancelled() => return,
        }
    }
}
