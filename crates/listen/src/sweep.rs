use std::{sync::Weak, time::Duration};

use tokio::time::{MissedTickBehavior, interval};

use crate::acceptor::Shared;

/// How often late connections are looked for, which is the unit of an acceptor's time.
const PERIOD: Duration = Duration::from_secs(1);

/// Closes what is late, until nobody accepts any more and nothing is open.
pub(crate) async fn sweep(shared: Weak<Shared>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(shared) = shared.upgrade() else { return };
        let now = shared.tick();
        for connection in shared.connections() {
            if let Some(reason) = connection.overdue(now) {
                connection.close(reason);
            }
        }
        shared.relieve_old();
        shared.memory().wake();
    }
}
