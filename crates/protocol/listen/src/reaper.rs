use std::{sync::Weak, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::acceptor::AcceptorState;

/// Interval of sweeps, and the unit of an acceptor's clock.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Closes connections that exceed a time limit. Ends when the acceptor and its connections are dropped.
pub(crate) async fn reap(shared: Weak<AcceptorState>) {
    let mut ticks = interval(SWEEP_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let now = shared.tick();
        for connection in shared.connections() {
            if let Some(reason) = connection.exceeded_limit(now) {
                connection.close(reason);
            }
            connection.sweep_streams();
        }
        shared.close_old_unread();
        shared.memory().wake_all();
        shared.unknown_memory().wake_all();
    }
}
