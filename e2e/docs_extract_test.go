//go:build e2e

package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a block of commands, or one command in the prose, of a page.
type block struct {
	page     string
	line     int
	prose    bool
	commands []string
}

// page is a text with commands: a file, or what a command prints.
type page struct {
	path, text string
}

// documented returns the pages of the repository that people read, in the order in which their
// commands are executed. The changelog and the decisions tell of the past.
func documented(t *testing.T) (pages []page) {
	t.Helper()
	out := strings.Fields(run(t, "git", "-C", "..", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"))
	slices.Sort(out)
	for _, path := range out {
		if path != "CHANGELOG.md" && !strings.HasPrefix(path, "docs/adr/") {
			pages = append(pages, page{path, read(t, filepath.Join("..", path))})
		}
	}
	return pages
}

// programs of the machine that this system need not have. They are the programs of commands in
// prose, too: there `sum by (…)` is no command.
var programs = []string{"amtool", "bin/unlocker", "/unlocker", "/usr/local/bin/unlocker", "unlocker", "chronyc", "curl", "docker", "etcdctl", "etcdutl", "go", "helm",
	"icinga2", "journalctl", "k3s", "kind", "kubectl", "make", "minikube", "openssl", "promtool", "skopeo", "ssh", "systemctl", "systemd-analyze", "timedatectl", ".ci/run"}

var (
	assignment = regexp.MustCompile(`^\w+=\S*(\s+|$)`)
	fence      = regexp.MustCompile("^\\s*```(\\w*)")
	// nagios are lines of Nagios and NRPE that have a command.
	nagios = regexp.MustCompile(`^\s*(?:command_line\s+|command\[\w+\]=)(.*)$`)
	span   = regexp.MustCompile("(?s)`+([^`]+)`+")
)

// isCommand reports whether a line begins with the name of a program, after assignments.
func isCommand(line string) bool {
	rest := assignment.ReplaceAllString(line, "")
	word, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	if word == "" {
		return rest != line // an assignment
	}
	if slices.Contains(programs, word) || strings.HasPrefix(word, "…") {
		return true
	}
	if strings.Contains(word, "/") {
		word = filepath.Join("..", word) // of the repository
	}
	_, err := exec.LookPath(word)
	return err == nil
}

// blocks returns the blocks of a page: fenced and indented ones, and commands in the prose.
func (p page) blocks() (found []block) {
	var prose strings.Builder
	lines := strings.Split(p.text, "\n")
	blank := true
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		var inside []string
		first := i + 1
		language := ""
		switch m := fence.FindStringSubmatch(line); {
		case m != nil:
			language = m[1]
			for i, first = i+1, i+2; i < len(lines) && fence.FindString(lines[i]) == ""; i++ {
				inside = append(inside, lines[i])
			}
		case blank && strings.HasPrefix(line, "    "):
			for ; i < len(lines) && (strings.HasPrefix(lines[i], "    ") || strings.TrimSpace(lines[i]) == ""); i++ {
				inside = append(inside, lines[i])
			}
			i--
		default:
			blank = strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#")
			prose.WriteString(line)
		}
		prose.WriteString(strings.Repeat("\n", i+1-strings.Count(prose.String(), "\n")))
		if inside != nil {
			blank = true
			if commands := commandsOf(language, inside); len(commands) > 0 {
				found = append(found, block{p.path, first, false, commands})
			}
		}
	}
	text := prose.String()
	for _, m := range span.FindAllStringSubmatchIndex(text, -1) {
		code := strings.Join(strings.Fields(text[m[2]:m[3]]), " ")
		word, arguments, _ := strings.Cut(code, " ")
		if arguments != "" && slices.Contains(programs, word) {
			found = append(found, block{p.path, 1 + strings.Count(text[:m[0]], "\n"), true, []string{code}})
		}
	}
	slices.SortStableFunc(found, func(a, b block) int { return a.line - b.line })
	return found
}

// transaction is the first line of an input of etcdctl txn.
var transaction = regexp.MustCompile(`^(version|value)\(`)

// commandsOf returns the commands of a block. If it shows output too, each command begins with
// a dollar sign. A block without a language has commands if it begins with one.
func commandsOf(language string, lines []string) (commands []string) {
	var all, dollars []string
	open := false
	for _, line := range lines {
		line = strings.TrimSpace(line)
		if m := nagios.FindStringSubmatch(line); m != nil {
			commands = append(commands, m[1])
		}
		if dollar, found := strings.CutPrefix(line, "$ "); found {
			dollars = append(dollars, dollar)
		}
		switch {
		case open:
			all[len(all)-1] += "\n" + line
		case line != "" && !strings.HasPrefix(line, "#"):
			all = append(all, line)
		}
		open = len(all) > 0 && continues(all[len(all)-1])
	}
	shell := slices.Contains([]string{"sh", "bash", "shell", "console"}, language)
	switch {
	case len(dollars) > 0:
		return dollars
	case len(all) > 0 && transaction.MatchString(all[0]):
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
		return []string{"etcdctl txn -w json <<'TXN'\n" + strings.Join(lines, "\n") + "\n\n\nTXN"}
	case shell || language == "" && len(all) > 0 && isCommand(all[0]):
		return all
	}
	return commands
}

// continues reports whether the next line is part of the command.
func continues(command string) bool {
	return strings.HasSuffix(command, "\\") || strings.HasSuffix(command, "|") || strings.HasSuffix(command, "&&") || strings.Count(command, "'")%2 == 1
}

// mentioned reports whether a command in the prose only names one that is executed: it is how
// another command begins.
func mentioned(command string, all []block) bool {
	return slices.ContainsFunc(all, func(b block) bool {
		return slices.ContainsFunc(b.commands, func(c string) bool {
			c = strings.TrimPrefix(strings.TrimPrefix(strings.Replace(c, " -n unlocker ", " ", 1), "bin/"), "/usr/local/bin/")
			return c != command && strings.HasPrefix(c+" ", strings.TrimPrefix(command, "/")+" ")
		})
	})
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }
