//! A second try beside one that takes long (hedged requests: Dean and Barroso, The Tail at Scale, 2013). Only for calls that
//! may be repeated, within the retry budget, to another endpoint; whoever answers first is heard, and the other is cancelled.

use std::{mem, pin::pin, sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{answer::judge, request::Copy, terms::Terms, times};
use crate::{
    core::{Call, Moment},
    stats::count,
    transport::{Line, Request, Sent, Slot, Times},
};

/// A try that is under way.
pub(super) struct Attempt<'a> {
    pub(super) line: &'a mut Arc<Line>,
    pub(super) slot: &'a mut Slot,
    /// When it began, in nanoseconds of the clock.
    pub(super) now: &'a mut u64,
    pub(super) times: Times,
}

/// Which of the two is heard.
enum Heard {
    First(Sent),
    Second(Sent),
}

/// Makes a try, and `after` that time another one beside it. Afterwards `call` and `attempt` are those of the one that is
/// heard.
pub(super) async fn send<'c>(
    terms: Terms<'_>,
    call: &mut Call<'c, Arc<Line>>,
    attempt: &mut Attempt<'_>,
    copy: &Copy,
    after: Duration,
) -> Sent {
    let line = Arc::clone(attempt.line);
    let unsent_second;
    let (other, other_line, begun, sent) = {
        let mut first = pin!(line.send(attempt.slot, attempt.times));
        tokio::select! {
            biased;
            sent = &mut first => return sent,
            () = sleep(after) => {}
        }
        let mesh = &terms.handle.mesh;
        let begun = mesh.clock.now();
        let Some((mut other, other_line)) = beside(terms, call, begun) else { return first.await };
        let mut slot: Slot = Some(Request { left: other.given(begun), ..copy.request() });
        let times = times(&other, begun, mesh.clock);
        let heard = {
            let mut second = pin!(other_line.send(&mut slot, times));
            tokio::select! {
                biased;
                sent = &mut first => match failed(&sent) {
                    false => Heard::First(sent),
                    true => {
                        call.end(judge(sent, false, terms, call, &line).0);
                        Heard::Second(second.await)
                    }
                },
                sent = &mut second => match failed(&sent) {
                    false => Heard::Second(sent),
                    true => {
                        other.end(judge(sent, false, terms, &other, &other_line).0);
                        Heard::First(first.await)
                    }
                },
            }
        };
        match heard {
            Heard::First(sent) => return sent,
            Heard::Second(sent) => {
                unsent_second = slot;
                (other, other_line, begun, sent)
            }
        }
    };
    // What was under way here is dropped with the call that it was of.
    drop(mem::replace(call, other));
    (*attempt.line, *attempt.now) = (other_line, begun);
    *attempt.slot = unsent_second;
    sent
}

/// The same call on its way to another endpoint, where there is one and the budget pays for it.
fn beside<'c>(
    terms: Terms<'_>,
    call: &Call<'c, Arc<Line>>,
    now: u64,
) -> Option<(Call<'c, Arc<Line>>, Arc<Line>)> {
    let mesh = &terms.handle.mesh;
    let mut other = call.fork();
    let at = Moment { clock: mesh.clock, now, seed: mesh.seed() };
    let line = other.decide(call.look(), terms.context, at).ok()?.lane(&mesh.wiring);
    if !other.is_elsewhere() {
        return None;
    }
    if !other.pay(now) {
        count(&mesh.counters.retries_refused);
        return None;
    }
    count(&mesh.counters.tries);
    count(&mesh.counters.hedges);
    Some((other, line))
}

fn failed(sent: &Sent) -> bool {
    sent.is_err()
}
