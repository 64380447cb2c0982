//! Why the node does not start, or stopped by itself: one line each, with what to do.

use std::fmt;
use std::io::ErrorKind;

use crate::io::LockError;
use crate::net::PortTaken;
use crate::store::OpenError;

/// See the variants; [`NodeError::exit_code`] says whether starting again can help.
#[derive(Debug)]
pub enum NodeError {
    /// Settings ask for something that this machine cannot give.
    Host(String),
    Port(PortTaken, &'static str),
    Store(OpenError),
    /// An executor could not start or ended early.
    Executor {
        role: String,
        why: String,
    },
}

impl NodeError {
    /// 2: the same start fails again until somebody changes something; 1: a restart may help.
    pub fn exit_code(&self) -> i32 {
        match self {
            NodeError::Host(_) | NodeError::Port(..) => 2,
            NodeError::Store(OpenError::Io { source, .. } | OpenError::Lock(LockError::Io { source, .. })) => {
                if needs_a_hand(source.kind()) || is_out_of_descriptors(source) {
                    2
                } else {
                    1
                }
            }
            NodeError::Executor { .. } => 1,
            NodeError::Store(_) => 2,
        }
    }
}

/// Rights, and things in the way, do not change by themselves; a full or failing disk may.
fn needs_a_hand(kind: ErrorKind) -> bool {
    use ErrorKind::{AlreadyExists, IsADirectory, NotADirectory, PermissionDenied, ReadOnlyFilesystem};
    matches!(kind, AlreadyExists | IsADirectory | NotADirectory | PermissionDenied | ReadOnlyFilesystem)
}

fn is_out_of_descriptors(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMFILE)
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeError::Host(why) => f.write_str(why),
            NodeError::Port(taken, key) => {
                write!(f, "{taken}; stop what uses the port or set another one ({key})")
            }
            NodeError::Store(error @ OpenError::Io { source, .. }) if is_out_of_descriptors(source) => write!(
                f,
                "{error}; the files of this store need more than the limit of open files (RLIMIT_NOFILE): raise the hard \
                 limit (systemd: LimitNOFILE=, shell: ulimit -Hn)"
            ),
            NodeError::Store(error) => error.fmt(f),
            NodeError::Executor { role, why } => write!(f, "{role}: {why}"),
        }
    }
}

impl std::error::Error for NodeError {}

impl From<OpenError> for NodeError {
    fn from(error: OpenError) -> NodeError {
        NodeError::Store(error)
    }
}
