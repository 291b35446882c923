package job

import (
	"os"
	"syscall"
	"unsafe"
)

// terminal is the controlling terminal of the process, nil if there is none. Its processes are
// in groups, of which one has the foreground: it may read, and gets the signals of the
// keyboard. The command begins in the background, since others in a pipeline with this process
// may need the terminal, and gets the foreground when it reads from the terminal or changes its
// modes. Until then this process passes the signals of the keyboard on.
type terminal struct{ file *os.File }

func openTerminal() *terminal {
	f, err := os.OpenFile("/dev/tty", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	return &terminal{f}
}

func (t *terminal) close() {
	if t != nil {
		_ = t.file.Close()
	}
}

// ioctl returns 0 on an error.
func (t *terminal) ioctl(request uintptr, value int) int {
	v := int32(value)
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, t.file.Fd(), request, uintptr(unsafe.Pointer(&v))); errno != 0 {
		return 0
	}
	return int(v)
}

// foreground returns the process group that has the terminal, or 0.
func (t *terminal) foreground() int {
	if t == nil {
		return 0
	}
	return t.ioctl(syscall.TIOCGPGRP, 0)
}

// jobControl reports whether there is a shell that notices when this process is stopped, and
// continues it: not if the process leads the session, as with ssh -t or in a container.
func (t *terminal) jobControl() bool {
	session, _, _ := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	return t != nil && int(session) != syscall.Getpgrp()
}

// give gives the terminal to a process group, if this one has it.
func (t *terminal) give(pgid int) {
	if t.foreground() == syscall.Getpgrp() {
		t.ioctl(syscall.TIOCSPGRP, pgid)
	}
}

// takeBack takes the terminal from a process group that has it.
func (t *terminal) takeBack(pgid int) {
	if t.foreground() == pgid && pgid != 0 {
		t.ioctl(syscall.TIOCSPGRP, syscall.Getpgrp())
	}
}
