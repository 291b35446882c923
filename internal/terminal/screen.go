package terminal

import (
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Size returns the size of the terminal that w is, and whether it is one. Where the terminal
// does not tell its size, it is 80 by 24.
func Size(w io.Writer) (columns, rows int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile {
		return 0, 0, false
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0, 0, false
	}
	if size.Col == 0 || size.Row == 0 {
		return 80, 24, true
	}
	return int(size.Col), int(size.Row), true
}

// Moves reports whether w is a terminal on which a screen can be drawn.
func Moves(w io.Writer) bool {
	_, _, ok := Size(w)
	name := os.Getenv("TERM")
	return ok && name != "" && name != "dumb"
}

// Colored reports whether text on w may be colored: w is a terminal that knows colors, and
// NO_COLOR is empty or not set (https://no-color.org).
func Colored(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && Moves(w) }

// Screen is the alternate screen of a terminal, on which keys are not echoed, and can be read one by one.
// Close brings back what the terminal showed before.
type Screen struct {
	file  *os.File
	modes *unix.Termios // before; nil if they are not known
}

const (
	// The alternate screen, without a cursor, and without going on in the next line where a
	// line is too long. The main screen, with both.
	enter = "\x1b[?1049h\x1b[?25l\x1b[?7l"
	leave = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	// What a terminal gets between these it shows at once, if it knows them.
	beginFrame = "\x1b[?2026h\x1b[H"
	endFrame   = "\x1b[J\x1b[?2026l"
	endLine    = "\x1b[K"
)

// OpenScreen switches a terminal to its alternate screen.
func OpenScreen(file *os.File) (*Screen, error) {
	s := &Screen{file: file}
	if modes, err := unix.IoctlGetTermios(int(file.Fd()), getModes); err == nil {
		s.modes = modes
		quiet := *modes
		quiet.Lflag &^= unix.ECHO | unix.ICANON
		quiet.Cc[unix.VMIN], quiet.Cc[unix.VTIME] = 0, 0
		_ = unix.IoctlSetTermios(int(file.Fd()), setModes, &quiet)
	}
	_, err := file.WriteString(enter)
	return s, err
}

// Draw replaces what the screen shows by lines that are safe to print and fit. It erases no
// line before it has the new one, so that nothing flickers.
func (s *Screen) Draw(lines []string) error {
	_, err := s.file.WriteString(beginFrame + strings.Join(lines, endLine+"\r\n") + endLine + endFrame)
	return err
}

// Typed returns the keys that were typed since it was last called. It does not wait for any.
func (s *Screen) Typed() string {
	var keys [64]byte
	if s.modes == nil {
		return ""
	}
	n, _ := unix.Read(int(s.file.Fd()), keys[:])
	return string(keys[:max(n, 0)])
}

// Close switches back. Keys that were typed meanwhile are dropped; those after it belong to the shell.
func (s *Screen) Close() error {
	if s.modes != nil {
		_ = unix.IoctlSetTermios(int(s.file.Fd()), setModes, s.modes)
	}
	_, err := s.file.WriteString(leave)
	return err
}
