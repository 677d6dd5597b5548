use fairmesh_model::Invalid;

/// Maximum length of the message of a change, in bytes: a history entry has room for it.
const MAX_MESSAGE: usize = 1024;

/// Returns the message of a change.
///
/// # Errors
/// The message is too long.
pub(crate) fn read_message(message: String) -> Result<String, Invalid> {
    match message.len() <= MAX_MESSAGE {
        true => Ok(message),
        false => {
            let problem = format!("has {} bytes", message.len());
            Err(Invalid::new("message", problem, format!("keep it to {MAX_MESSAGE}")))
        }
    }
}
