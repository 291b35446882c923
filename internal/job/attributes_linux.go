package job

import "syscall"

// attributes give the command a process group of its own, and let the kernel kill it when this
// process ends in a way that it cannot handle.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
