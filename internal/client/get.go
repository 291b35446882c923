package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/etcd-unlocker/unlocker/internal/api"
)

// maxBody bounds an answer and maxError an error answer, in bytes.
const (
	maxBody  = 32 << 20
	maxError = 4 << 10
)

// Refusal is the error of an answer with a status other than 200.
type Refusal struct {
	Code int
	// Words are the error of the API, if the answer has one.
	Words string
}

func (r Refusal) Error() string {
	text := fmt.Sprintf("answers %d %s", r.Code, http.StatusText(r.Code))
	if r.Words != "" {
		text += ": " + r.Words
	}
	return text
}

// A daemon serves few requests at a time and answers 503 beyond that, which must not
// alert.
const (
	busyRetries = 3
	busyPause   = time.Second
)

// get requests one resource and decodes the answer.
func (d Daemon) get(ctx context.Context, what string, into any) (err error) {
	for range 1 + busyRetries {
		err = d.client.try(ctx, d.URL+"/api/v1/"+what, into)
		var refused Refusal
		if !errors.As(err, &refused) || refused.Code != http.StatusServiceUnavailable {
			return err
		}
		select {
		case <-time.After(busyPause):
		case <-ctx.Done():
			return err
		}
	}
	return err
}

func (c *Client) try(ctx context.Context, resource string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, resource, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "unlocker")
	if c.username != "" {
		req.SetBasicAuth(c.username, c.password)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		var body api.Error
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // a part of it may be enough
		_ = json.Unmarshal(text, &body)                            // it may be the page of a proxy
		return Refusal{resp.StatusCode, body.Error}
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return c.explain(err)
	}
	if len(text) > maxBody {
		return fmt.Errorf("answers more than %d MiB", maxBody>>20)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("is not an unlocker daemon: %w", err)
	}
	return nil
}

// explain removes what the operator knows already, such as the URL, from an error.
func (c *Client) explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("does not answer within %s", c.timeout)
	}
	var of *url.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	return fmt.Errorf("does not answer: %w", err)
}
