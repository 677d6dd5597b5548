use fairmesh_model::{Invalid, ServiceName};

/// A value that names a service: a text such as `shop/cart`, or a [`ServiceName`].
pub trait IntoServiceName {
    /// Converts to a service name.
    ///
    /// # Errors
    /// The text is malformed.
    fn into_service_name(self) -> Result<ServiceName, Invalid>;
}

impl IntoServiceName for &str {
    fn into_service_name(self) -> Result<ServiceName, Invalid> {
        ServiceName::new(self)
    }
}

impl IntoServiceName for String {
    fn into_service_name(self) -> Result<ServiceName, Invalid> {
        ServiceName::new(self)
    }
}

impl IntoServiceName for &String {
    fn into_service_name(self) -> Result<ServiceName, Invalid> {
        ServiceName::new(self)
    }
}

impl IntoServiceName for ServiceName {
    fn into_service_name(self) -> Result<ServiceName, Invalid> {
        Ok(self)
    }
}

impl IntoServiceName for &ServiceName {
    fn into_service_name(self) -> Result<ServiceName, Invalid> {
        Ok(self.clone())
    }
}
