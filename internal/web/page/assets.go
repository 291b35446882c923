package page

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

type asset struct {
	contentType   string
	plain, packed []byte
}

type assets struct {
	files map[string]asset
	// hash is that of all files: scripts import each other by relative paths.
	hash string
}

func loadAssets() (assets, error) {
	a := assets{files: map[string]asset{}}
	sum := sha256.New()
	// The machine's own table may have others, or none.
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	entries, err := fs.ReadDir(files, "assets")
	if err != nil {
		return a, err
	}
	for _, entry := range entries {
		name := entry.Name()
		content, err := fs.ReadFile(files, "assets/"+name)
		if err != nil {
			return a, err
		}
		_, _ = sum.Write(append([]byte(name), content...))
		contentType, ok := types[path.Ext(name)]
		if !ok {
			return a, fmt.Errorf("web pages: no type for %s", name)
		}
		a.files[name] = asset{contentType, content, Gzip(content)}
	}
	a.hash = hex.EncodeToString(sum.Sum(nil))[:16]
	return a, nil
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
