//! Computes reports from closed minutes on disk and open ones in memory.

use std::collections::{BTreeMap, HashSet};

use fairmesh_imbalance::{
    Breakdown, Dimension, ImbalanceReport, Member, Minute, ReportQuery, Row, ServiceOutlier, Tier, outliers,
};
use fairmesh_model::ServiceName;

use super::{HistoryError, Imbalance};

impl Imbalance {
    /// Reports the waste in the window that ends with the minute `last`. Later minutes are not complete: averages over
    /// them would dip. The window starts with a full hour or day if only hours or days are stored.
    pub(super) async fn report(
        &self,
        query: &ReportQuery,
        last: Minute,
    ) -> Result<ImbalanceReport, HistoryError> {
        let tier = Tier::for_window(query.window);
        let from = tier.bucket(last.before(query.window - 1));
        let mut rows: BTreeMap<(Minute, ServiceName), Row> = BTreeMap::new();
        let _not_closing = self.closing.read().await;
        let recent = last.before(Tier::Minute.kept());
        let mut newest = self.newest(query, (recent, last)).await?;
        let mut add = |(minute, service, row): (Minute, ServiceName, Row), end: Minute| {
            if query.has(&service) {
                newest = newest.max(Some(end));
                rows.entry((query.by.time(minute), service)).or_default().add(&row);
            }
        };
        if let Some(history) = &self.history {
            for row in history.rows(tier, from, last).await? {
                let end = tier.last_minute(row.0, recent);
                add(row, end);
            }
        }
        let open = self.open().minutes();
        for minute in open.into_iter().filter(|minute| (from..=last).contains(minute)) {
            // Some services may be closed already, if the write for another service failed.
            let closed = match &self.history {
                Some(history) => history.closed(minute).await?,
                None => HashSet::new(),
            };
            let rows = self.open().rows(minute);
            let rows = rows.into_iter().filter(|(service, _)| !closed.contains(service));
            rows.for_each(|(service, row)| add((minute, service, row), minute));
        }
        let outliers = match query.by {
            Breakdown::Slice(Dimension::HostType) => self.outliers(query),
            _ => Vec::new(),
        };
        Ok(ImbalanceReport { newest, ..ImbalanceReport::of(query.by, &rows, outliers) })
    }

    /// The newest closed minute in which servers reported, by the finest rows: minutes are kept since `recent`, and hours
    /// tell of the rest of its day. Most often, the minutes of the last hour suffice.
    async fn newest(
        &self,
        query: &ReportQuery,
        (recent, last): (Minute, Minute),
    ) -> Result<Option<Minute>, HistoryError> {
        let Some(history) = &self.history else { return Ok(None) };
        let (hour, day) = (last.before(Tier::Hour.minutes()), Tier::Day.bucket(recent));
        for (tier, from) in [(Tier::Minute, hour), (Tier::Minute, recent), (Tier::Hour, day)] {
            let rows = history.rows(tier, from, last).await?.into_iter();
            let of_query = rows.filter(|(_, service, _)| query.has(service));
            let newest = of_query.map(|(start, ..)| tier.last_minute(start, recent)).max();
            if newest.is_some() {
                return Ok(newest);
            }
        }
        Ok(None)
    }

    /// Outliers among a service's instances on hosts of the same type, over the open minutes.
    fn outliers(&self, query: &ReportQuery) -> Vec<ServiceOutlier> {
        let members = self.open().members();
        let groups = members.into_iter().filter(|((service, _), _)| query.has(service));
        let entry = groups.flat_map(|((service, host_type), members)| {
            let name = move |outlier| ServiceOutlier {
                service: service.clone(),
                host_type: host_type.clone(),
                outlier,
            };
            outliers(&members).into_iter().map(name)
        });
        entry.collect()
    }

    /// The usage of a service's instances over the open minutes.
    pub(crate) fn instances(&self, service: &ServiceName) -> Vec<Member> {
        self.open().instances(service)
    }
}
