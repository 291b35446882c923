# frozen_string_literal: true

require "fileutils"
require "json"
require "minitest/autorun"
require "net/http"
require "openssl"
require "socket"
require "tempfile"
require "tmpdir"
require "uri"
require "unlocker_mutex"

# What the tests need: an etcd of their own, the daemon, a proxy that loses answers, and raw requests.
module Support
  SOON = 30

  module_function

  # A port that nobody else is given while this process lives: a socket that does not listen stays bound to it, which leaves
  # it to a server.
  def free_port
    socket = Socket.new(:INET, :STREAM)
    socket.autoclose = false
    socket.setsockopt(:SOCKET, :REUSEADDR, true)
    socket.bind(Addrinfo.tcp("127.0.0.1", 0))
    socket.local_address.ip_port
  end

  def b64(text)
    [text].pack("m0")
  end

  def now
    Process.clock_gettime(Process::CLOCK_MONOTONIC)
  end

  def eventually(message = "the condition did not hold in time")
    ends = now + SOON
    until (value = yield)
      raise Minitest::Assertion, message if now > ends

      sleep 0.02
    end
    value
  end

  # A program that ends with the test.
  class Program
    attr_reader :log

    def initialize(*command)
      @command = command
      @log = Tempfile.new("log")
      run
    end

    def run
      @pid = Process.spawn(*@command, %i[out err] => @log.path)
    end

    def kill
      return unless @pid

      Process.kill(:KILL, @pid)
      Process.wait(@pid)
      @pid = nil
    end

    def wait
      Support.eventually { Process.wait(@pid, Process::WNOHANG) }
      @pid = nil
    end

    def signal(name)
      return unless @pid

      Process.kill(name, @pid)
      Process.wait(@pid, Process::WUNTRACED) if name == :STOP # until each of its threads has stopped
    end
  end

  class Etcd < Program
    attr_reader :url, :port

    def initialize(*flags, tls: false, gateway: true)
      @port = Support.free_port
      peer = "http://127.0.0.1:#{Support.free_port}"
      @tls = tls
      @url = "#{tls ? 'https' : 'http'}://127.0.0.1:#{@port}"
      certs = ENV.fetch("CERTS")
      flags += ["--cert-file", "#{certs}/server.pem", "--key-file", "#{certs}/server.key", "--trusted-ca-file", "#{certs}/ca.pem", "--client-cert-auth"] if tls
      @dir = Dir.mktmpdir
      super(ENV.fetch("ETCD"), "--data-dir", @dir, "--log-level", "error", "--unsafe-no-fsync", "--listen-client-urls", @url, "--advertise-client-urls", @url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=#{peer}", "--bcrypt-cost", "4",
            "--heartbeat-interval", "10", "--election-timeout", "100", *flags)
      ready if gateway
    end

    def kill
      super
      FileUtils.rm_rf(@dir)
    end

    def restart
      Process.kill(:KILL, @pid)
      Process.wait(@pid)
      run
      ready
    end

    # Waits for an answer for as long as etcd runs, which a busy machine may make long.
    def ready
      post("/v3/kv/range", { key: Support.b64("ready") }, 1)
    rescue SystemCallError, IOError, Timeout::Error
      unless Process.wait(@pid, Process::WNOHANG)
        sleep 0.02
        retry
      end
      @pid = nil
      raise Minitest::Assertion, "etcd has ended: #{File.read(@log.path)}"
    end

    def post(path, body, timeout = SOON)
      http(timeout).start { |http| JSON.parse(http.post(path, JSON.generate(body), "Content-Type" => "application/json").body) }
    end

    # The values by their keys, without the prefix.
    def keys
      found = post("/v3/kv/range", key: Support.b64("/mutexes/"), range_end: Support.b64("/mutexes0"))
      (found["kvs"] || []).to_h { |kv| [kv["key"].unpack1("m").force_encoding("UTF-8")[9..], (kv["value"] || "").unpack1("m").force_encoding("UTF-8")] }
    end

    def key(name)
      post("/v3/kv/range", key: Support.b64("/mutexes/#{name}"))["kvs"][0]
    end

    def put(name, value)
      post("/v3/kv/put", key: Support.b64("/mutexes/#{name}"), value: Support.b64(value))
    end

    def delete(name)
      post("/v3/kv/deleterange", key: Support.b64("/mutexes/#{name}"))
    end

    def revision
      post("/v3/kv/range", key: Support.b64("x"))["header"]["revision"].to_i
    end

    # How many requests of a method etcd has begun.
    def requests(method)
      http.start { |http| http.get("/metrics").body }[/grpc_server_started_total\{grpc_method="#{method}",.*\} (\S+)/, 1].to_f.to_i
    end

    private

    def http(timeout = SOON)
      http = Net::HTTP.new("127.0.0.1", port, nil)
      http.open_timeout = http.read_timeout = timeout
      return http unless @tls

      certs = ENV.fetch("CERTS")
      http.use_ssl = true
      http.ca_file = "#{certs}/ca.pem"
      http.cert = OpenSSL::X509::Certificate.new(File.read("#{certs}/client.pem"))
      http.key = OpenSSL::PKey.read(File.read("#{certs}/client.key"))
      http
    end
  end

  # The daemon, with times that are short for a test.
  class Daemon < Program
    def initialize(etcd)
      super(ENV.fetch("UNLOCKER"), "serve", "--etcd-endpoints", etcd.url, "--ops-listen", "127.0.0.1:0", "--web-listen", "127.0.0.1:0",
            "--reaper-freshness", "2s", "--reaper-grace", "2s", "--reaper-clock-tolerance", "1s", "--reaper-probe-interval", "1s", "--reaper-settle", "500ms")
      Support.eventually { File.read(log.path).include?("unlocker started") }
    end
  end

  # Forwards connections to a port. lose is how many answers it will swallow by closing the connection,
  # seen are the others. While hold is true, requests wait; they arrive also if who sent them has given up.
  class Proxy
    attr_reader :url, :lost, :seen
    attr_accessor :lose, :hold

    def initialize(port)
      @port = port
      @lose = @lost = 0
      @seen = +""
      @listener = TCPServer.new("127.0.0.1", 0)
      @url = "http://127.0.0.1:#{@listener.addr[1]}"
      @sockets = []
      @thread = Thread.new { accept }
    end

    def kill
      @hold = false
      @thread.kill.join
      [@listener, *@sockets].each(&:close)
    end

    private

    def accept
      loop do
        client = @listener.accept
        server = TCPSocket.new("127.0.0.1", @port)
        @sockets.push(client, server)
        answered = Queue.new
        Thread.new { pump(client, server, false, answered) }
        Thread.new { pump(server, client, true, answered) }
      end
    end

    # etcd drops a request whose connection ends before its answer, so the end of one that was held waits for that.
    def pump(source, target, answers, answered)
      held = false
      loop do
        data = source.readpartial(1 << 16)
        if answers && lose.positive?
          @lose -= 1
          @lost += 1
          break
        end
        if hold && !answers
          held = true
          sleep 0.01 while hold
          answered.clear
        end
        answered << data if answers
        target.write(data)
        @seen << data if answers
      end
    rescue IOError, SystemCallError
      nil
    ensure
      answers ? answered << nil : (answered.pop if held)
      [source, target].each do |socket|
        socket.shutdown
      rescue IOError, SystemCallError
        nil
      end
    end
  end

  class Test < Minitest::Test
    include Support
    include UnlockerMutex

    def setup
      @started = []
      settle(1e6) # no client listens to questions where tests count requests
      @etcd = start(Etcd.new)
    end

    # For how long a lock is held before its client listens.
    def settle(seconds)
      UnlockerMutex.send(:remove_const, :SETTLED)
      UnlockerMutex.const_set(:SETTLED, seconds)
    end

    def teardown
      @started.reverse_each(&:kill)
    end

    def start(program)
      @started << program
      program
    end

    # A client that waits for a busy etcd.
    def connect(*urls, request_timeout: SOON, **options)
      Client.new(urls.empty? ? [@etcd.url] : urls, request_timeout: request_timeout, **options)
    end

    # Makes a client give up so soon. What it took before had time.
    def hurry(client, timeout)
      etcd = client.instance_variable_get(:@etcd)
      [client, etcd].each { |it| it.instance_variable_set(:@timeout, timeout) }
      etcd.instance_variable_set(:@attempt, timeout / 2)
    end

    # Gives a user the rights to locks, and to what else is asked for.
    def guard(*prefixes)
      { "root" => "root", "ada" => "secret" }.each do |name, password|
        @etcd.post("/v3/auth/user/add", name: name, password: password)
        @etcd.post("/v3/auth/role/add", name: name)
        @etcd.post("/v3/auth/user/grant", user: name, role: name)
      end
      ["/mutexes/", *prefixes].each do |prefix|
        @etcd.post("/v3/auth/role/grant", name: "ada", perm: { permType: "READWRITE", key: b64(prefix), range_end: b64("#{prefix[..-2]}0") })
      end
      @etcd.post("/v3/auth/enable", {})
    end

    # Calls, and fails if it takes longer, with some time for a busy machine.
    def within(seconds)
      began = now
      yield
    ensure
      assert_operator now - began, :<, seconds + 4
    end

    def lost(lock)
      eventually { lock.lost }.reason
    end
  end
end
