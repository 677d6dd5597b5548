//! Keeps the history of a store up with what its cluster commits, whoever wrote it.

use std::sync::Arc;

use tokio::time::sleep;

use super::{
    client::{self, Client},
    failure::Failure,
    gather::Gather,
    layout::{Layout, State, number, signed},
    proto::{RangeRequest, WatchCreateRequest},
    shared::Shared,
};

/// Why a watch ended.
enum End {
    /// The connection, the member or its leader is lost.
    Away(String),
    /// What it needs next is compacted; the state at this revision is the oldest that is left.
    Compacted(u64),
}

/// Follows until the store is broken or this is dropped. `next` is the first revision of the cluster that the history
/// does not hold.
pub(super) async fn follow(shared: Arc<Shared>, mut next: u64) {
    let mut failures = 0;
    loop {
        let began = next;
        let end = watch(&shared, &mut next).await;
        failures = if next > began { 1 } else { failures + 1 };
        match &end {
            End::Away(problem) => {
                tracing::warn!(place = %shared.client.place, problem, failures, "the watch of etcd is begun anew");
                sleep(client::pause(failures)).await;
            }
            End::Compacted(_) => {
                tracing::warn!(place = %shared.client.place, next, "etcd has compacted what was not read yet");
            }
        }
        let state = state(&shared).await;
        if let Some(problem) = contradiction(&shared, &state, next) {
            return shared.broke(problem);
        }
        if let End::Compacted(oldest) = end {
            // Where nothing of this store is among what is gone, nobody has to load anything.
            let (last, reached) = match shared.state_at(oldest).await {
                Ok(then) => (then.last, oldest),
                // Compacted further meanwhile.
                Err(_) => (state.last, state.revision),
            };
            shared.history.skip_to(last);
            next = reached + 1;
        }
    }
}

/// Publishes what comes until the watch ends; `next` is then where another has to begin.
async fn watch(shared: &Shared, next: &mut u64) -> End {
    let range = shared.layout.everything();
    let create = WatchCreateRequest {
        key: range.start,
        range_end: range.end,
        start_revision: signed(*next),
        progress_notify: true,
        fragment: true,
    };
    let (mut answers, member) = match shared.client.watch(create).await {
        Ok(watch) => watch,
        Err(failure) => return End::Away(failure.words()),
    };
    let mut gather = Gather::from(&shared.layout, *next);
    let problem = loop {
        let answer = match answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => break "etcd closed it".to_owned(),
            Err(status) => break Failure::of(status).words(),
        };
        if answer.canceled {
            if answer.compact_revision > 0 {
                return End::Compacted(number(answer.compact_revision));
            }
            // Some releases say "permission denied" where they mean that the token is not good.
            shared.client.forget_token();
            break answer.cancel_reason;
        }
        shared.history.publish(gather.take(answer));
        *next = gather.next();
    };
    shared.client.turn_from(member);
    End::Away(problem)
}

/// How far the store is, however long that takes to find out.
async fn state(shared: &Shared) -> State {
    let mut failures = 0;
    loop {
        match shared.state().await {
            Ok(state) => return state,
            Err(failure) => {
                failures += 1;
                let problem = failure.words();
                tracing::warn!(place = %shared.client.place, problem, "etcd cannot be asked; readers see older records");
                sleep(client::pause(failures)).await;
            }
        }
    }
}

/// Why what is there now is not what was followed.
fn contradiction(shared: &Shared, state: &State, next: u64) -> Option<String> {
    if state.mark.as_ref() != Some(&shared.mark) {
        return Some("another store, or none, took its place in etcd; start the process again".into());
    }
    (state.revision + 1 < next).then(|| {
        format!(
            "etcd went back from revision {} to {}, as when an older copy is put back; start the process once with \
             --new-store-id",
            next - 1,
            state.revision
        )
    })
}

impl Shared {
    /// How far the store is now.
    pub(super) async fn state(&self) -> Result<State, Failure> {
        read_state(&self.client, &self.layout).await
    }

    /// How far it was at a revision of the cluster.
    async fn state_at(&self, revision: u64) -> Result<State, Failure> {
        let ask = RangeRequest { revision: signed(revision), ..self.layout.ask_state() };
        Ok(self.layout.state(self.client.range(ask).await?))
    }
}

/// How far a store is, and which one it is.
pub(super) async fn read_state(client: &Client, layout: &Layout) -> Result<State, Failure> {
    Ok(layout.state(client.range(layout.ask_state()).await?))
}
