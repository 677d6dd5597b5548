//! Calls to services that have a lookaside of their own.

use std::sync::Arc;

use super::terms::Terms;
use crate::{
    core::{Call, Sight, View},
    leases::Cell,
    stats::count,
    transport::Line,
};

/// Lets a lookaside choose where the service that gets the call has one of its own, from here on: what is now known of the
/// service, and the leases that it is called by. Where there are none, the records choose.
pub(super) async fn turn(
    terms: Terms<'_>,
    call: &mut Call<'_, Arc<Line>>,
    view: Sight<Arc<Line>>,
) -> (Sight<Arc<Line>>, Option<Arc<Cell>>) {
    let address = match &**view {
        View::Ready(ready) => match &ready.lookaside {
            Some(address) => Arc::clone(address),
            None => return (view, None),
        },
        _ => return (view, None),
    };
    drop(view);
    let mesh = &terms.handle.mesh;
    let name = call.target().name().clone();
    // In a box: few services have one, and the others' calls need not be as large.
    let cell = Box::pin(mesh.own_lookasides.called(&address, &name, terms.context, call.key())).await;
    match &cell {
        Some(cell) => call.turn_to(Arc::clone(&cell.subscription)),
        None => count(&mesh.counters.lookaside_missed),
    }
    (call.look(), cell)
}
