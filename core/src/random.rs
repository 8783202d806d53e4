//! Random names (getrandom(2)).

use rustix::io::Errno;
use rustix::rand::GetRandomFlags;

use crate::text;

/// Sixteen hexadecimal digits.
pub fn random_name() -> Result<String, Errno> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(text::hex(&bytes))
}
