//! Calls to services that have a lookaside of their own.

use std::sync::Arc;

use tokio::time::timeout;

use super::{HeadersView, terms::Terms};
use crate::{
    core::{Call, Sight, View},
    leases::Cell,
    stats::count,
    transport::{Head, Line},
};

/// Lets a lookaside choose where the service that gets the call has one of its own, from here on: what is now known of the
/// service and when, and the leases that it is called by. Where there are none, or not in half of the time that is left, the
/// records choose. `head`: by what its route may answer the call itself, where it may.
pub(super) async fn turn(
    terms: Terms<'_>,
    call: &mut Call<'_, Arc<Line>>,
    (now, view): (u64, Sight<Arc<Line>>),
    head: Option<&Head>,
) -> ((u64, Sight<Arc<Line>>), Option<Arc<Cell>>) {
    let address = match &**view {
        View::Ready(ready) => match &ready.lookaside {
            Some(address) => Arc::clone(address),
            None => return ((now, view), None),
        },
        _ => return ((now, view), None),
    };
    if head.is_some_and(|head| answers_itself(terms, call, head)) {
        return ((now, view), None);
    }
    drop(view);
    let mesh = &terms.handle.mesh;
    let name = call.target().name().clone();
    // In a box: few services have one, and the others' calls need not be as large.
    let called = mesh.own_lookasides.called(&address, &name, terms.context, call.key());
    let cell = Box::pin(timeout(call.left_before_request(now) / 2, called)).await.ok().flatten();
    match &cell {
        Some(cell) => call.turn_to(Arc::clone(&cell.subscription)),
        None => count(&mesh.counters.lookaside_missed),
    }
    ((mesh.clock.now(), call.look()), cell)
}

/// Whether its route answers the call, so that nobody is to be chosen.
fn answers_itself(terms: Terms<'_>, call: &Call<'_, Arc<Line>>, head: &Head) -> bool {
    let headers = HeadersView(&head.headers);
    call.treatment().is_some_and(|own| own.direct_response(&head.view(&headers), terms.start.seed).is_some())
}
