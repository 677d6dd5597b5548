//! Caches reports, so that many readers cost no more than one.

use std::{collections::HashMap, sync::Arc, time::Duration};

use fairmesh_imbalance::ImbalanceReport;
use tokio::{runtime::Handle, sync::Mutex, task::spawn_blocking, time::Instant};

use super::{Imbalance, ReportQuery, newest_complete};

/// Validity of a cached report.
const MAX_REPORT_AGE: Duration = Duration::from_secs(5);
/// Maximum number of cached reports.
const MAX_CACHED: usize = 64;

/// Cached reports by query. The lock is held while a report is computed, so that at most one core computes reports.
#[derive(Debug, Default)]
pub(super) struct ReportCache(Arc<Mutex<Reports>>);

type Reports = HashMap<ReportQuery, (Instant, Arc<ImbalanceReport>)>;

impl Imbalance {
    /// A report that is at most [`MAX_REPORT_AGE`] old. Computed on a separate thread if none is cached.
    ///
    /// # Errors
    /// The reason why the report cannot be computed.
    pub(crate) async fn cached_report(
        self: &Arc<Self>,
        query: ReportQuery,
    ) -> Result<Arc<ImbalanceReport>, String> {
        let mut cache = self.report_cache.0.clone().lock_owned().await;
        cache.retain(|_, (computed, _)| computed.elapsed() < MAX_REPORT_AGE);
        if let Some((_, report)) = cache.get(&query) {
            return Ok(report.clone());
        }
        let (this, wanted, handle) = (self.clone(), query.clone(), Handle::current());
        // If the reader leaves, the computation still completes and holds the lock until then.
        let computing =
            spawn_blocking(move || (handle.block_on(this.report(&wanted, newest_complete())), cache));
        let (computed, mut cache) = computing.await.map_err(|stopped| stopped.to_string())?;
        let report = Arc::new(computed.map_err(|error| error.to_string())?);
        if cache.len() < MAX_CACHED {
            cache.insert(query, (Instant::now(), report.clone()));
        }
        Ok(report)
    }
}
