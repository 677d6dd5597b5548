use tokio_util::sync::CancellationToken;

use super::Handle;
use crate::Node;

/// Tells the upstream of a node what everybody who watches the node has applied, as soon as they have, until `stopping`:
/// so acknowledgements travel through any number of processes. Where the upstream waits for one, so does the node for its
/// watchers'.
pub async fn acknowledge(node: Node, upstream: Handle, stopping: CancellationToken) {
    let (mut acks, mut revisions, mut hurried) = (node.acks(), node.revisions(), upstream.hurried());
    loop {
        acks.mark_unchanged();
        revisions.mark_unchanged();
        if node.store().is_some() {
            upstream.ack(node.applied_by_all());
        }
        tokio::select! {
            Ok(()) = acks.changed() => {}
            Ok(()) = revisions.changed() => {}
            Ok(()) = hurried.changed() => {
                let wanted = *hurried.borrow_and_update();
                if let Some(wanted) = wanted.filter(|wanted| node.store() == Some(wanted.store)) {
                    node.hurry(wanted.number);
                }
            }
            () = node.given_up() => {}
            () = stopping.cancelled() => return,
        }
    }
}
