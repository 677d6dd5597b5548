use fairmesh_model::{Invalid, ServiceName};

/// Names a service: a text such as `shop/cart`, or a [`ServiceName`].
pub trait IntoServiceName {
    /// The name.
    ///
    /// # Errors
    /// When the text is malformed.
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
