use fairmesh_model::{Invalid, ServiceName, Tenant};

use crate::{Breakdown, Tier, read_window};

/// Default window, in minutes.
fn default_window(by: Breakdown) -> u32 {
    match by {
        Breakdown::Time(Tier::Hour) => 24 * 60,
        Breakdown::Time(Tier::Day) => 14 * 24 * 60,
        _ => 60,
    }
}

/// Parameters of a report.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReportQuery {
    /// The service to report on; `None` means all services.
    pub service: Option<ServiceName>,
    /// The tenant whose services to report on; `None` means all tenants.
    pub tenant: Option<Tenant>,
    /// How the report groups rows.
    pub by: Breakdown,
    /// Length of the window in minutes. It ends with the newest complete minute.
    pub window: u32,
}

impl ReportQuery {
    /// Parses a query. Empty fields mean the default.
    ///
    /// # Errors
    /// As for [`of`](Self::of), and when the window is no duration.
    pub fn read(service: &str, by: &str, window: &str) -> Result<Self, Invalid> {
        let window = if window.is_empty() { 0 } else { read_window(window)? };
        Self::of(service, by, window)
    }

    /// Builds a query with a window in minutes. 0 means the default.
    ///
    /// # Errors
    /// When a name is malformed or unknown, or hours are not kept for the window.
    pub fn of(service: &str, by: &str, window: u32) -> Result<Self, Invalid> {
        let service = match service {
            "" => None,
            name => Some(ServiceName::new(name).map_err(|e| e.within("service"))?),
        };
        let by = match by {
            "" => Breakdown::default(),
            name => Breakdown::named(name).ok_or_else(|| {
                let names: Vec<_> = Breakdown::ALL.iter().map(|by| by.name()).collect();
                Invalid::new(
                    "by",
                    format!("'{name}' is unknown"),
                    format!("write one of {}", names.join(", ")),
                )
            })?,
        };
        let window = if window == 0 { default_window(by) } else { window.min(Tier::Day.kept()) };
        if by == Breakdown::Time(Tier::Hour) && window > Tier::Hour.kept() {
            let days = Tier::Hour.kept() / Tier::Day.minutes();
            let hint = format!("ask for {days}d at most, or by day");
            return Err(Invalid::new("window", format!("hours are kept for {days} days"), hint));
        }
        Ok(Self { service, tenant: None, by, window })
    }

    /// Restricts a query to the services of a tenant; `None` does not restrict it.
    #[must_use]
    pub fn within(self, tenant: Option<&Tenant>) -> Self {
        Self { tenant: tenant.cloned(), ..self }
    }

    /// Whether the report is about a service.
    pub fn has(&self, service: &ServiceName) -> bool {
        self.service.as_ref().is_none_or(|wanted| wanted == service)
            && self.tenant.as_ref().is_none_or(|wanted| *wanted == service.tenant)
    }
}
