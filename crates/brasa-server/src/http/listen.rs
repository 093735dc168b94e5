//! Sockets that wait for connections.

use std::io::Result;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Most connections that wait to be accepted.
const WAITING: i32 = 1024;

/// Listens at an address, without blocking. `shares` lets other processes listen there too.
///
/// # Errors
///
/// The system's error; [`Unsupported`](std::io::ErrorKind::Unsupported) if `shares` is set and the system cannot share an
/// address.
pub(crate) fn at(address: SocketAddr, shares: bool) -> Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // The address of a server that has just ended is free. On Windows the same option would steal it from a running one.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    if shares {
        share(&socket)?;
    }
    socket.bind(&address.into())?;
    socket.listen(WAITING)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(all(unix, not(any(target_os = "solaris", target_os = "illumos", target_os = "cygwin"))))]
fn share(socket: &Socket) -> Result<()> {
    socket.set_reuse_port(true)
}

#[cfg(not(all(unix, not(any(target_os = "solaris", target_os = "illumos", target_os = "cygwin")))))]
fn share(_: &Socket) -> Result<()> {
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "this system shares no address"))
}

#[cfg(all(test, unix))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_address_is_shared_only_if_all_say_so() {
        let first = at("127.0.0.1:0".parse().unwrap(), true).unwrap();
        let address = first.local_addr().unwrap();
        assert!(at(address, true).is_ok());
        assert_eq!(at(address, false).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    }
}
