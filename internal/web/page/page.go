// Package page renders the web pages, and the events that keep them up to date, from one set of
// HTML templates; these, the style sheet and the scripts are embedded.
//
// Guaranteed: a page is complete and readable without scripts. Values from etcd are escaped,
// for HTML and for the eye: control characters and bidirectional overrides are shown, not
// obeyed. A page needs nothing from other origins and has neither inline script nor inline
// style, so that Policy can forbid both.
//
// Not guaranteed: that values are small; package api limits them, and maxRows the HTML of a table.
// The package asks nobody for data and serves no requests: package web does.
package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
	"github.com/etcd-unlocker/unlocker/internal/terminal"
)

//go:embed templates assets
var files embed.FS

// Policy is the Content-Security-Policy of the pages.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// View is the content of a page.
type View interface {
	// template returns the name of the template in templates/.
	template() string
}

// Pages renders pages. It is safe for concurrent use.
type Pages struct {
	prefix    string
	acts      bool
	templates map[string]*template.Template
	assets    assets
}

// New parses the templates, which are a part of the program: it panics if one is not valid. All links of the pages begin with
// prefix, which is empty or a path without a slash at its end. They have actions of users if acts is set.
func New(prefix string, acts bool) *Pages {
	const layout, parts = "templates/layout.html", "templates/parts.html"
	p := &Pages{prefix: prefix, acts: acts, templates: map[string]*template.Template{}, assets: loadAssets()}
	names, _ := fs.Glob(files, "templates/*.html") // a valid pattern
	for _, name := range names {
		if name != layout && name != parts {
			t := template.Must(template.New("layout.html").Funcs(functions()).ParseFS(files, layout, parts, name))
			p.templates[strings.TrimSuffix(path.Base(name), ".html")] = t
		}
	}
	return p
}

// Render returns the HTML of a view, as it is at now.
func (p *Pages) Render(v View, now time.Time) ([]byte, error) {
	return p.execute("layout.html", v, now)
}

func (p *Pages) execute(name string, v View, now time.Time) ([]byte, error) {
	var html bytes.Buffer
	d := document{View: v, Prefix: p.prefix, Acts: p.acts, Now: now, assets: "/assets/" + p.assets.hash + "/", html: &html}
	if err := p.templates[v.template()].ExecuteTemplate(&html, name, d); err != nil {
		return nil, fmt.Errorf("render %s of the page %s: %w", name, v.template(), err)
	}
	return html.Bytes(), nil
}

// document is the data of the templates.
type document struct {
	View   View
	Prefix string
	Acts   bool
	Now    time.Time
	assets string
	// html is what has been rendered.
	html *bytes.Buffer
}

// Here returns the name of the template, which the navigation marks.
func (d document) Here() string { return d.View.template() }

// Asset returns the path of an asset.
func (d document) Asset(name string) string { return d.Prefix + d.assets + name }

// Lock returns the path of the page of a lock.
func (d document) Lock(name string) string { return d.Prefix + "/locks/" + escapeName(name) }

// Href returns the path of the page of a lock, and "" where the name is not whole, so that there is no such lock.
func (d document) Href(name string) string {
	if api.Clipped(name) {
		return ""
	}
	return d.Lock(name)
}

// API returns the path of a lock in the API.
func (d document) API(name string) string { return d.Prefix + "/api/v1/locks/" + escapeName(name) }

// At returns a moment for the templates that show times.
func (d document) At(t time.Time) moment { return moment{t, d.Now} }

// escapeName keeps slashes, unless a browser would resolve the segments between them. A name that is such a
// segment alone has a slash after it, which the server ignores.
func escapeName(name string) string {
	segments := strings.Split(name, "/")
	if name == "." || name == ".." {
		return name + "%2F"
	}
	if slices.ContainsFunc(segments, func(s string) bool { return s == "." || s == ".." }) {
		return url.PathEscape(name)
	}
	for i, s := range segments {
		segments[i] = url.PathEscape(s)
	}
	return strings.Join(segments, "/")
}

// moment is a time that a page shows, and the time of the page.
type moment struct{ t, now time.Time }

// Known reports whether there is a time.
func (m moment) Known() bool { return !m.t.IsZero() }

// ISO is for scripts, to the millisecond.
func (m moment) ISO() string { return m.t.UTC().Format("2006-01-02T15:04:05.000Z") }

// UTC is the date and the time, Exact that to the millisecond. The page names the zone once.
func (m moment) UTC() string   { return m.t.UTC().Format(time.DateTime) }
func (m moment) Exact() string { return m.t.UTC().Format("2006-01-02 15:04:05.000") }

// Relative is "in 3m12s" or "12s ago".
func (m moment) Relative() string { return terminal.Relative(m.t, m.now) }

// Since is how long ago the moment was.
func (m moment) Since() string { return terminal.Duration(m.now.Sub(m.t)) }

// Clock is the time of the day, after the day if that is not today.
func (m moment) Clock() string {
	t, now := m.t.UTC(), m.now.UTC()
	if t.Year() == now.Year() && t.YearDay() == now.YearDay() {
		return t.Format("15:04:05")
	}
	return t.Format("2006-01-02 15:04")
}

// Soon reports whether less than a minute is left.
func (m moment) Soon() bool { return m.t.After(m.now) && m.t.Before(m.now.Add(time.Minute)) }

func functions() template.FuncMap {
	return template.FuncMap{
		"count":   count,
		"line":    line, // one line of untrusted text
		"percent": func(share float64) string { return fmt.Sprintf("%.0f %%", 100*share) },
		"states":  api.StatesByUrgency,
		"text":    terminal.Text, // several lines
		"turn":    func(i int) string { return count(i + 1) },
		"waiting": func(h api.NativeHolder) int { return len(h.Waiters) + h.MoreWaiters },

		"clock": terminal.Clock, "ending": ending, "field": field, "inputs": inputs,
		"ratio": func(share float64) string { return fmt.Sprintf("%.3f", share) },
		"shell": shell, "traces": traces, "value": newValue, "why": why,
	}
}

// times are those in the sentences of verdicts and holds, in UTC, and what is quoted there: that has none.
var times = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|(?:\b\d{4}-\d\d-\d\d )?\b\d\d:\d\d:\d\d\b`)

// segment is a part of a sentence: a text or a time.
type segment struct {
	Text string
	Time moment
}

// Sentence returns what the daemon says, which may quote etcd, so that its times are shown as others on the page.
func (d document) Sentence(s string) (all []segment) {
	at := 0
	for _, m := range times.FindAllStringIndex(s, -1) {
		text := s[m[0]:m[1]]
		if len(text) == len(time.TimeOnly) { // of the day of the page
			text = d.Now.UTC().Format(time.DateOnly) + " " + text
		}
		if t, err := time.Parse(time.DateTime, text); err == nil {
			all = append(all, segment{Text: terminal.Text(s[at:m[0]])}, segment{Time: d.At(t)})
			at = m[1]
		}
	}
	return append(all, segment{Text: terminal.Text(s[at:])})
}

func line(s string) string {
	if s == "" {
		return ""
	}
	return terminal.Quote(s)
}

// Native is the page /native.
type Native struct {
	Status api.Status
	api.NativeList
}

func (Native) template() string { return "native" }

// Health is the page /health.
type Health struct{ Status api.Status }

func (Health) template() string { return "health" }

// Actions is the page /actions: what users may do to many locks at once.
type Actions struct {
	Status api.Status
	// User is who asks, unless NoUser says why that is not known.
	User, NoUser string
	// Match is the pattern that the form of a pause begins with.
	Match string
}

func (Actions) template() string { return "actions" }

// Problem is the page of an error.
type Problem struct {
	// Status is the HTTP status, Text says what is wrong.
	Status int
	Text   string
	// Lock is the name of the lock that was asked for, if one was.
	Lock string
}

func (Problem) template() string { return "problem" }

type asset struct {
	contentType   string
	plain, packed []byte
}

type assets struct {
	files map[string]asset
	// hash is that of all files: scripts import each other by relative paths.
	hash string
}

func loadAssets() assets {
	a := assets{files: map[string]asset{}}
	sum := sha256.New()
	// The machine's own table may have others, or none.
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	entries, _ := files.ReadDir("assets") // it is embedded, as its files are
	for _, entry := range entries {
		name := entry.Name()
		content, _ := files.ReadFile("assets/" + name)
		_, _ = sum.Write(append([]byte(name), content...))
		a.files[name] = asset{types[path.Ext(name)], content, Gzip(content)}
	}
	a.hash = hex.EncodeToString(sum.Sum(nil))[:16]
	return a
}

// Asset returns an asset by the hash and the name in its path. It returns false if there is
// none of that name.
func (p *Pages) Asset(w http.ResponseWriter, r *http.Request, hash, name string) bool {
	file, ok := p.assets.files[name]
	if !ok {
		return false
	}
	// During an upgrade, a replica is asked for the assets of another version. Its own are
	// better than none, for once.
	if hash == p.assets.hash {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	w.Header().Set("Content-Type", file.contentType)
	Send(w, r, http.StatusOK, file.plain, func([]byte) []byte { return file.packed })
	return true
}

// Send answers with a body, packed if the client accepts that.
func Send(w http.ResponseWriter, r *http.Request, status int, body []byte, pack func([]byte) []byte) {
	w.Header().Add("Vary", "Accept-Encoding")
	if acceptsGzip(r.Header.Get("Accept-Encoding")) {
		w.Header().Set("Content-Encoding", "gzip")
		body = pack(body)
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // an error means that the client has gone
}

// Gzip packs a body.
func Gzip(body []byte) []byte {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(body) // a buffer takes everything
	_ = w.Close()
	return packed.Bytes()
}

// acceptsGzip reports whether the header names gzip and does not exclude it.
func acceptsGzip(header string) bool {
	for coding := range strings.SplitSeq(header, ",") {
		name, params, _ := strings.Cut(coding, ";")
		if strings.EqualFold(strings.TrimSpace(name), "gzip") {
			q, isQ := strings.CutPrefix(strings.ReplaceAll(strings.ToLower(params), " ", ""), "q=")
			return !isQ || strings.Trim(q, "0.") != ""
		}
	}
	return false
}
