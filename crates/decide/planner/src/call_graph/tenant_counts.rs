use std::collections::BTreeMap;

use fairmesh_model::Tenant;

/// Numbers of nodes or edges by tenant, so that the rows of one tenant leave room in a graph to those of others.
#[derive(Clone, Debug, Default)]
pub(super) struct TenantCounts(BTreeMap<Tenant, usize>);

impl TenantCounts {
    pub(super) fn of<'a>(tenants: impl Iterator<Item = &'a Tenant>) -> Self {
        let mut counts = Self::default();
        tenants.for_each(|tenant| counts.add(tenant));
        counts
    }

    pub(super) fn add(&mut self, tenant: &Tenant) {
        match self.0.get_mut(tenant) {
            Some(count) => *count += 1,
            None => drop(self.0.insert(tenant.clone(), 1)),
        }
    }

    pub(super) fn remove(&mut self, tenant: &Tenant) {
        if let Some(count) = self.0.get_mut(tenant) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(tenant);
            }
        }
    }

    /// The tenant that loses one for another one of `tenant`: the one with the most. `None` if that is `tenant` itself.
    pub(super) fn loser(&self, tenant: &Tenant) -> Option<Tenant> {
        let own = self.0.get(tenant).copied().unwrap_or_default();
        let (largest, count) = self.0.iter().max_by_key(|(_, count)| **count)?;
        (*count > own + 1).then(|| largest.clone())
    }
}
