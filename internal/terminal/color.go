package terminal

// Color is a color of the 16 that the user of the terminal has chosen.
type Color string

// The colors.
const (
	Plain   Color = ""
	Red     Color = "\x1b[1;31m"
	Yellow  Color = "\x1b[33m"
	Magenta Color = "\x1b[35m"
	Green   Color = "\x1b[32m"
)

// Paint returns safe text in a color.
func Paint(s string, c Color) string {
	if c == Plain {
		return s
	}
	return string(c) + s + "\x1b[0m"
}
