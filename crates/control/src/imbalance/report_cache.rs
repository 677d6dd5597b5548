//! Reports that were made a moment ago: many readers cost as much as one.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fairmesh_imbalance::Report;
use tokio::{runtime::Handle, sync::Mutex, task::spawn_blocking, time::Instant};

use super::{Imbalance, now, reading::Question};

/// For how long a report is given to others who ask the same.
const FRESH: Duration = Duration::from_secs(5);
/// Reports that are kept.
const MAX_KEPT: usize = 64;

/// The reports, by what was asked. The lock is held while one is made, so that they take one core at most.
#[derive(Debug, Default)]
pub(super) struct Recent(Arc<Mutex<Reports>>);

type Reports = HashMap<Question, (Instant, Arc<Report>)>;

impl Imbalance {
    /// A report that is at most [`FRESH`] old, made on a thread of its own where there is none.
    ///
    /// # Errors
    /// Why it could not be made, for people.
    pub(super) async fn recent(self: &Arc<Self>, asked: Question) -> Result<Arc<Report>, String> {
        let mut recent = self.recent.0.clone().lock_owned().await;
        recent.retain(|_, (made, _)| made.elapsed() < FRESH);
        if let Some((_, report)) = recent.get(&asked) {
            return Ok(report.clone());
        }
        let (this, question, handle) = (self.clone(), asked.clone(), Handle::current());
        // The report is made to its end if its reader goes away, and keeps the lock until then.
        let making = spawn_blocking(move || (handle.block_on(this.report(&question, now())), recent));
        let (made, mut recent) = making.await.map_err(|stopped| stopped.to_string())?;
        let report = Arc::new(made.map_err(|error| error.to_string())?);
        if recent.len() < MAX_KEPT {
            recent.insert(asked, (Instant::now(), report.clone()));
        }
        Ok(report)
    }
}
