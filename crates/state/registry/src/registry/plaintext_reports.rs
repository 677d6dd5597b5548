use fairmesh_model::{InstanceId, Invalid, ServiceName};
use tokio::time::Instant;

use super::Registry;
use crate::{
    InstanceRef,
    plaintext_callers::{MAX_CALLERS, PlaintextCaller},
};

impl Registry {
    /// Stores the report of a server that has renewed its lease.
    ///
    /// # Errors
    /// When the report has too many callers.
    pub fn report_plaintext_callers(
        &self,
        servers: &[InstanceRef],
        callers: &[PlaintextCaller],
    ) -> Result<(), Invalid> {
        if callers.len() > MAX_CALLERS {
            let hint = format!("report {MAX_CALLERS}, those with a connection first");
            return Err(Invalid::new("plaintext_callers", "are too many", hint));
        }
        let mut reports = self.plaintext_reports();
        if callers.is_empty() && reports.is_empty() {
            return Ok(());
        }
        servers.iter().for_each(|server| reports.put(server, callers, Instant::now()));
        Ok(())
    }

    /// Returns the plaintext callers of each server of a service that has any.
    pub fn plaintext_callers(&self, service: &ServiceName) -> Vec<(InstanceId, Vec<PlaintextCaller>)> {
        self.plaintext_reports().of(service, Instant::now())
    }
}
