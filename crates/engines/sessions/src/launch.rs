//! A command with its user and its working directory.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Command, Stdio};

use fabric::attach::NotStarted;
use fabric::session::{self, MOST_TERMINALS};

use crate::capabilities::Ambient;
use crate::home;
pub use crate::home::HOME;
use crate::numbers::{number, numbers};

/// The first argument if the command has a standard input.
pub const WITH_STDIN: &str = "stdin";
/// The next argument if the command is the emulator of a virtual machine.
pub const EMULATOR: &str = "emulator";
/// The next argument if init is in a container.
pub const IN_CONTAINER: &str = "container";

/// A command with all its attributes except its environment.
#[derive(Clone)]
pub struct Launch {
    /// Whether it has a standard input.
    stdin: bool,
    /// Whether it is the emulator of a virtual machine.
    is_emulator: bool,
    /// Whether its user is one of the container or guest, whose `/etc/passwd` has the home directory.
    has_own_users: bool,
    user: u32,
    group: u32,
    groups: Vec<u32>,
    directory: OsString,
    program: OsString,
    arguments: Vec<OsString>,
}

/// The process group whose signals a command receives.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Company {
    /// Init's process group.
    Init,
    /// A group of its own, in a session of its own.
    Own,
    /// The same, with the session's terminal as its standard input.
    AtTerminal,
}

impl Launch {
    /// Parses the arguments of an instance's first process.
    ///
    /// # Errors
    /// If they are incomplete.
    pub fn parse(arguments: &[OsString]) -> io::Result<Self> {
        let (stdin, arguments) = has_word(arguments, WITH_STDIN);
        let (is_emulator, arguments) = has_word(arguments, EMULATOR);
        let (in_container, arguments) = has_word(arguments, IN_CONTAINER);
        let [user, group, groups, directory, program, arguments @ ..] = arguments else {
            return Err(io::Error::other("only a node starts transhume init"));
        };
        let (user, group, groups) = (number(user)?, number(group)?, numbers(groups)?);
        Ok(Self {
            stdin,
            is_emulator,
            has_own_users: in_container,
            user,
            group,
            groups,
            directory: directory.clone(),
            program: program.clone(),
            arguments: arguments.to_vec(),
        })
    }

    /// What commands in a guest inherit: root in the root directory.
    #[must_use]
    pub fn in_guest() -> Self {
        Self {
            stdin: false,
            is_emulator: false,
            has_own_users: true,
            user: 0,
            group: 0,
            groups: Vec::new(),
            directory: "/".into(),
            program: OsString::new(),
            arguments: Vec::new(),
        }
    }

    /// The launch of a session's command: `order` overrides some attributes of this launch.
    pub fn of_session(&self, order: &session::Order) -> Self {
        let mut words = order.command.iter().map(OsString::from);
        let mut launch =
            Self { program: words.next().unwrap_or_default(), arguments: words.collect(), ..self.clone() };
        if let Some(directory) = &order.directory {
            launch.directory = directory.into();
        }
        if let Some((user, group)) = order.user {
            (launch.user, launch.group, launch.groups) = (user, group, Vec::new());
        }
        launch
    }

    /// Its standard input, unless a session provides one.
    pub fn stdin(&self) -> Stdio {
        if self.stdin { Stdio::piped() } else { Stdio::null() }
    }

    /// Whether it is the emulator of a virtual machine.
    pub fn is_emulator(&self) -> bool {
        self.is_emulator
    }

    /// The user that it runs as.
    pub fn user(&self) -> u32 {
        self.user
    }

    /// Starts the command with this environment and its home, and with these as standard input, output and error.
    ///
    /// # Errors
    /// Those of fork and exec, and of the calls between them.
    pub fn spawn(
        &self,
        environment: impl Iterator<Item = (OsString, OsString)>,
        [stdin, stdout, stderr]: [Stdio; 3],
        company: Company,
    ) -> io::Result<process::Child> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).env_clear().envs(self.with_home(environment));
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        let (user, group, groups) = (self.user, self.group, self.groups.clone());
        let directory = CString::new(self.directory.as_bytes())?;
        // Outside containers, the ambient capabilities are the node's.
        let ambient = if self.has_own_users { Ambient::own()? } else { Ambient::default() };
        // SAFETY: between fork and exec, system calls only; `groups` is live and as long as said.
        unsafe {
            command.pre_exec(move || {
                default_signals();
                let failed = unblock_signals() == -1
                    || company != Company::Init && libc::setsid() == -1
                    || company == Company::AtTerminal
                        && libc::ioctl(libc::STDIN_FILENO, libc::TIOCSCTTY, 0) == -1
                    || changes_groups(&groups) && libc::setgroups(groups.len(), groups.as_ptr()) == -1
                    || libc::setgid(group) == -1
                    || ambient.set_user(user) == -1
                    || libc::chdir(directory.as_ptr()) == -1;
                if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        command.spawn()
    }

    /// This environment. In a container or guest, it adds the user's home unless it contains one.
    fn with_home(
        &self,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Vec<(OsString, OsString)> {
        let mut environment: Vec<_> = environment.collect();
        if self.has_own_users && !environment.iter().any(|(name, _)| name == HOME) {
            environment.push((HOME.into(), home::of(self.user)));
        }
        environment
    }

    /// The reason why the command did not start. The directory is checked first: without it, no command is found.
    pub fn explain(&self, error: &io::Error) -> NotStarted {
        let (program, directory) = (self.program.display(), self.directory.display());
        if !Path::new(&self.directory).is_dir() {
            let what =
                format!("`{program}` cannot be started: its working directory {directory} does not exist");
            let remedy = "start it from a directory that exists on the host or in the container, or name one (`--directory`)";
            return not_started(126, what, remedy);
        }
        let what = format!("`{program}` cannot be started in {directory}: {error}");
        if error.kind() == io::ErrorKind::NotFound {
            let remedy = "check that it is installed on the host or in the container, and in $PATH; for a script, check its interpreter too";
            return not_started(127, what, remedy);
        }
        let remedy = match error.raw_os_error() {
            Some(libc::EPERM) => {
                "check that its user may run it; for another user (`--user`) a container's root needs CAP_SETUID and CAP_SETGID"
            }
            Some(libc::EAGAIN) => {
                "the process limit is reached: end some processes, or start the instance with a higher limit (`--pids`, or `ulimit -u`)"
            }
            Some(libc::ENOMEM) => {
                "there is too little memory: end other processes, or start the instance with a higher limit (`--memory`)"
            }
            _ => "check that it is an executable file that its user may run (`ls -l`, `file`)",
        };
        not_started(126, what, remedy)
    }
}

/// The reason why the command got no terminal.
pub fn without_terminal(error: &io::Error) -> NotStarted {
    let what = format!("there is no terminal for the command: {error}");
    let remedy = format!(
        "check that /dev/ptmx and /dev/pts exist and that fewer than {MOST_TERMINALS} terminals of the instance are in use, or omit `--tty`"
    );
    not_started(126, what, &remedy)
}

/// The reason why the instance's own command gets no input.
pub fn without_stdin() -> NotStarted {
    let what =
        "its command has no standard input, another client is attached to it, or no client attached to it in time"
            .to_owned();
    not_started(126, what, "start it with `transhume run --stdin`")
}

/// The reason why a console gets no input.
#[must_use]
pub fn second_console() -> NotStarted {
    let what = "another client is attached to the console".to_owned();
    let remedy = "end that `transhume console` with Ctrl-], or read along with `transhume logs --follow`";
    not_started(126, what, remedy)
}

fn not_started(code: u8, what: String, remedy: &str) -> NotStarted {
    NotStarted { code, what, remedy: remedy.to_owned() }
}

/// Whether the wanted supplementary groups differ from the present ones. Setting equal groups too needs a right that containers may
/// lack.
fn changes_groups(groups: &[libc::gid_t]) -> bool {
    // SAFETY: into a list without length nothing is written.
    !groups.is_empty() || unsafe { libc::getgroups(0, std::ptr::null_mut()) } != 0
}

/// Resets ignored signals: the node may ignore some, for example after a start with `nohup` or a shell's `&`, and programs must not
/// inherit this.
fn default_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: this sets no handler. Signals that cannot be changed stay as they are.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// A program expects to start without blocked signals; init has blocked those that it receives.
fn unblock_signals() -> libc::c_int {
    // SAFETY: the set is made empty before it is used.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    }
}

/// Whether `word` comes first, and the arguments after it.
fn has_word<'a>(arguments: &'a [OsString], word: &str) -> (bool, &'a [OsString]) {
    match arguments {
        [first, rest @ ..] if first == word => (true, rest),
        _ => (false, arguments),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn an_incomplete_launch_is_refused() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        let written = words("7 8 9,10 /srv program argument");
        let launch = Launch::parse(&written).unwrap();
        assert_eq!((launch.user, launch.group, &launch.groups[..]), (7, 8, &[9, 10][..]));
        assert_eq!((launch.program.as_os_str(), launch.arguments.len()), (OsStr::new("program"), 1));
        assert!(Launch::parse(&words("7 8  /srv program")).unwrap().groups.is_empty());
        let with_stdin = Launch::parse(&words("stdin 7 8  /srv stdin x")).unwrap();
        assert_eq!((with_stdin.stdin, with_stdin.program.as_os_str()), (true, OsStr::new("stdin")));
        assert!(!launch.stdin && !launch.has_own_users);
        let contained = Launch::parse(&words("stdin container 7 8  /srv x")).unwrap();
        assert!(contained.stdin && contained.has_own_users);
        assert!(Launch::parse(&words("7 x  /srv program")).is_err());
        assert!(Launch::parse(&words("sleep 10")).is_err());
    }

    #[test]
    fn a_command_does_not_inherit_ignored_signals() {
        // SAFETY: no other test uses this signal.
        unsafe { libc::signal(libc::SIGVTALRM, libc::SIG_IGN) };
        let words = ["0", "0", "", "/", "sh", "-c", "kill -VTALRM $$"].map(OsString::from);
        let launch = Launch::parse(&words).unwrap();
        let streams = [Stdio::null(), Stdio::null(), Stdio::null()];
        let mut child = launch.spawn(std::env::vars_os(), streams, Company::Own).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGVTALRM));
    }

    #[test]
    fn a_failed_start_names_the_reason() {
        let launch = Launch::parse(&["0", "0", "", "/", "x"].map(OsString::from)).unwrap();
        let remedy = |error| launch.explain(&io::Error::from_raw_os_error(error)).remedy;
        assert!(remedy(libc::EAGAIN).contains("(`--pids`, or `ulimit -u`)"));
        assert!(remedy(libc::ENOMEM).contains("(`--memory`)"));
        assert!(remedy(libc::EPERM).contains("CAP_SETUID"));
        assert!(remedy(libc::EACCES).contains("an executable file"));
    }

    #[test]
    fn in_a_container_a_command_gets_its_users_home_unless_home_is_set() {
        let home = |words: &str, user: Option<(u32, u32)>, environment: &[(&str, &str)]| {
            let words: Vec<_> = words.split(' ').map(OsString::from).collect();
            let order = session::Order { user, ..session::Order::default() };
            let launch = Launch::parse(&words).unwrap().of_session(&order);
            let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
            launch.with_home(environment).into_iter().map(|(_, value)| value).collect::<Vec<_>>()
        };
        assert_eq!(home("container 0 0  / x", None, &[]), ["/root"]);
        assert_eq!(home("container 0 0  / x", Some((4_000_000_000, 0)), &[]), ["/"]);
        assert_eq!(home("container 0 0  / x", None, &[("HOME", "/x")]), ["/x"]);
        assert_eq!(home("0 0  / x", None, &[]), [""; 0]);
    }

    #[test]
    fn a_session_inherits_all_that_its_order_leaves_open() {
        let words: Vec<_> = "7 8 9 /srv program".split(' ').map(OsString::from).collect();
        let base = Launch::parse(&words).unwrap();
        let command = vec!["other".to_owned(), "x".to_owned()];
        let plain = base.of_session(&session::Order { command, ..session::Order::default() });
        assert_eq!((plain.user, plain.group, &plain.groups[..]), (7, 8, &[9][..]));
        assert_eq!(
            (plain.directory.as_os_str(), plain.program.as_os_str()),
            (OsStr::new("/srv"), OsStr::new("other"))
        );
        assert_eq!(plain.arguments, ["x"]);
        let (directory, user) = (Some("/".to_owned()), Some((1, 2)));
        let own = base.of_session(&session::Order { directory, user, ..session::Order::default() });
        assert_eq!((own.user, own.group, &own.groups[..]), (1, 2, &[][..]));
        assert_eq!(own.directory, "/");
    }
}
