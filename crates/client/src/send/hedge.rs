//! A second try beside one that takes long (hedged requests: Dean and Barroso, The Tail at Scale, 2013). Only for calls that
//! may be repeated, within the retry budget, to another endpoint; whoever answers first is heard, and the other is cancelled.

use std::{
    mem,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

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
    let (second, sent) = {
        let mut first = pin!(line.send(attempt.slot, attempt.times));
        tokio::select! {
            biased;
            sent = &mut first => return sent,
            () = sleep(after) => {}
        }
        let begun = terms.handle.mesh.clock.now();
        let Some((other, line_beside)) = beside(terms, call, begun) else { return first.await };
        let slot: Slot = Some(Request { left: other.given(begun), ..copy.request() });
        let second = Second { call: other, line: line_beside, slot, begun };
        match second.race(terms, (call, (&line, *attempt.now)), first.as_mut()).await {
            (Heard::First(sent), _) => return sent,
            (Heard::Second(sent), second) => (second, sent),
        }
    };
    // What was under way here is dropped with the call that it was of.
    drop(mem::replace(call, second.call));
    (*attempt.line, *attempt.now, *attempt.slot) = (second.line, second.begun, second.slot);
    sent
}

/// The try beside it.
struct Second<'c> {
    call: Call<'c, Arc<Line>>,
    line: Arc<Line>,
    slot: Slot,
    begun: u64,
}

impl Second<'_> {
    /// Makes it, and answers which of the two is heard: who answers first, or who is left.
    async fn race(
        mut self,
        terms: Terms<'_>,
        (call, tried): (&mut Call<'_, Arc<Line>>, (&Line, u64)),
        mut first: Pin<&mut impl Future<Output = Sent>>,
    ) -> (Heard, Self) {
        terms.mark(&mut self.slot);
        let times = times(&self.call, self.begun, terms.handle.mesh.clock);
        let heard = {
            let mut second = pin!(self.line.send(&mut self.slot, times));
            tokio::select! {
                biased;
                sent = &mut first => match failed(&sent) {
                    false => Heard::First(sent),
                    true => {
                        lost(terms, call, tried, sent);
                        Heard::Second(second.await)
                    }
                },
                sent = &mut second => match failed(&sent) {
                    false => Heard::Second(sent),
                    true => {
                        lost(terms, &mut self.call, (&self.line, self.begun), sent);
                        Heard::First(first.await)
                    }
                },
            }
        };
        (heard, self)
    }
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
    let chosen = other.decide(call.look(), terms.context, at).ok()?;
    let line = chosen.lane(&mesh.wiring);
    if !other.is_elsewhere() {
        return None;
    }
    if !other.pay(now) {
        count(&mesh.counters.retries_refused);
        return None;
    }
    count(&mesh.counters.tries);
    count(&mesh.counters.hedges);
    terms.chose(&other, &line, &chosen);
    Some((other, line))
}

/// One of the two has failed, and the other one is waited for.
fn lost(terms: Terms<'_>, call: &mut Call<'_, Arc<Line>>, (line, begun): (&Line, u64), sent: Sent) {
    let (ending, answer) = judge(sent, false, terms, call, line);
    terms.tried(call, (line, begun), &answer);
    call.end(ending);
}

fn failed(sent: &Sent) -> bool {
    sent.is_err()
}
