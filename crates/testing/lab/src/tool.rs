//! Runs `ip`, `nft` and similar tools.

use std::ffi::OsStr;
use std::io::{ErrorKind, Write};
use std::process::{Command, Output, Stdio};

use crate::error::Doing;
use crate::{Error, Result, mark};

/// A system command that the lab requires.
#[derive(Clone, Copy, Debug)]
pub struct Tool<'a> {
    name: &'static str,
    package: &'static str,
    lab_id: Option<&'a str>,
}

/// Interfaces, addresses, namespaces.
pub const IP: Tool<'static> = Tool { name: "ip", package: "iproute2", lab_id: None };
/// Packet filter.
pub const NFT: Tool<'static> = Tool { name: "nft", package: "nftables", lab_id: None };
/// Runs a command in other namespaces. `ip netns exec` is not used, because it creates a mount namespace
/// with a mount that CRIU rejects.
pub const NSENTER: Tool<'static> = Tool { name: "nsenter", package: "util-linux", lab_id: None };
/// Runs a command in a new mount namespace, and keeps that.
pub const UNSHARE: Tool<'static> = Tool { name: "unshare", package: "util-linux", lab_id: None };

impl<'a> Tool<'a> {
    /// The same tool as a process of the lab with this id: if it outlives its caller,
    /// `lab down` finds it.
    #[must_use]
    pub fn of_lab(self, id: &'a str) -> Self {
        Self { lab_id: Some(id), ..self }
    }

    /// Runs the tool with `arguments` and returns its standard output.
    ///
    /// # Errors
    /// [`Error::MissingTool`], or [`Error::Tool`] with its standard error.
    pub fn run(self, arguments: &[impl AsRef<OsStr>]) -> Result<String> {
        self.feed(arguments, "")
    }

    /// Likewise, with `input` on its standard input.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn feed(self, arguments: &[impl AsRef<OsStr>], input: &str) -> Result<String> {
        let output = self.output(arguments, input)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Error::Tool {
            command: self.line(arguments),
            output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }

    /// Checks that the tool is installed.
    ///
    /// # Errors
    /// [`Error::MissingTool`].
    pub fn check(self) -> Result<()> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).any(|folder| folder.join(self.name).is_file());
        if found { Ok(()) } else { Err(self.missing()) }
    }

    /// The command line up to a script, for an error.
    fn line(self, arguments: &[impl AsRef<OsStr>]) -> String {
        let words = arguments.iter().map(|argument| argument.as_ref().to_string_lossy());
        words
            .take_while(|word| !word.contains('\n'))
            .fold(self.name.to_owned(), |line, word| line + " " + &word)
    }

    fn output(self, arguments: &[impl AsRef<OsStr>], input: &str) -> Result<Output> {
        let mut command = Command::new(self.name);
        if let Some(id) = self.lab_id {
            command.env(mark::VARIABLE, id);
        }
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| self.not_started(error))?;
        if let Some(mut stdin) = child.stdin.take() {
            // If the tool ends without reading all input, its standard error has the reason.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output().doing(|| format!("cannot wait for {}", self.name))
    }

    fn not_started(self, source: std::io::Error) -> Error {
        if source.kind() == ErrorKind::NotFound {
            return self.missing();
        }
        Error::Io { what: format!("cannot start {}", self.name), source }
    }

    fn missing(self) -> Error {
        Error::MissingTool { tool: self.name, package: self.package }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tool_names_its_package() {
        let error =
            Tool { name: "no-such-tool", package: "some-package", lab_id: None }.run(&["x"]).unwrap_err();
        assert!(error.to_string().contains("apt-get install some-package"), "{error}");
    }

    #[test]
    fn error_contains_the_tools_message() {
        let error = IP.run(&["link", "show", "th-no-such"]).unwrap_err();
        assert!(error.to_string().contains("th-no-such"), "{error}");
    }
}
