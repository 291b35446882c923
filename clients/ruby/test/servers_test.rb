# frozen_string_literal: true

require_relative "support"

# What real Pumas and Sidekiqs do with locks at TERM. Their work takes a lock for a block and one without, and then waits
# for the lock "gate", which the test holds.
class ServersTest < Support::Test
  WORK = <<~RUBY
    $stdout.sync = true
    require "unlocker_mutex"
    CLIENT = UnlockerMutex::Client.new([ENV.fetch("URL")], request_timeout: 30)
    KEPT = []
    at_exit { CLIENT.unlock_all(KEPT) }
    def work
      CLIENT.lock("block", max_hold: 600) do |lock|
        KEPT << CLIENT.lock("kept", max_hold: 600)
        CLIENT.lock("gate") { lock.check! }
      end
    end
  RUBY
  PUMA = "app { work; [200, {}, []] }"
  SIDEKIQ = "class Job; include Sidekiq::Job; def perform = work; end"

  def setup
    super
    @dir = Dir.mktmpdir
    ENV.update("URL" => @etcd.url, "RUBYLIB" => File.expand_path("../lib", __dir__), "REDIS_URL" => "unix://#{@dir}/redis")
    @gate = connect.lock("gate", max_hold: 600)
  end

  def teardown
    super
    FileUtils.rm_rf(@dir)
  end

  def test_puma_waits_for_requests
    ["", "workers 1"].each do |mode|
      server, answer = puma(mode)
      term(server, /Gracefully (stopping|shutting down)/) { @gate.unlock }
      assert_equal "200", answer.value.code
      assert_empty @etcd.keys
      @gate = connect.lock("gate", max_hold: 600)
    end
  end

  def test_puma_raises_in_requests
    ["", "workers 1"].each do |mode|
      server, answer = puma("force_shutdown_after 0; #{mode}")
      term(server, /Gracefully (stopping|shutting down)/)
      assert_equal "503", answer.value.code
      assert_equal ["gate"], held
    end
  end

  # The job is pushed back before its lock is released, so the other Sidekiq waits for it.
  def test_sidekiq_waits_for_jobs_and_then_raises
    start(Support::Program.new("redis-server", "--port", "0", "--unixsocket", "#{@dir}/redis", "--save", ""))
    eventually { redis("ping") == "PONG" }
    redis("lpush", "queue:default", JSON.generate(class: "Job", args: [], jid: "1", queue: "default"))
    first = sidekiq(1)
    eventually { held.include?("kept") }
    second = sidekiq(30)
    eventually { File.read(second.log.path).include?("Booting") }
    token = @etcd.key("block/uuid")["create_revision"]
    term(first, /Terminating 1 busy worker/)
    eventually { held.include?("kept") && @etcd.key("block/uuid")["create_revision"] != token }
    term(second, /Pausing to allow workers to finish/) { @gate.unlock }
    assert_equal "0", redis("llen", "queue:default")
    assert_empty @etcd.keys
  end

  private

  # A Puma that has begun to answer a request, and its answer.
  def puma(mode)
    port = free_port
    server = server("puma", "--bind", "tcp://127.0.0.1:#{port}", "--config", file("#{WORK}#{PUMA}\n#{mode}"))
    answer = Thread.new do
      eventually { Net::HTTP.start("127.0.0.1", port, nil, read_timeout: SOON) { |http| http.get("/") } rescue nil }
    end
    eventually { held.include?("kept") }
    [server, answer]
  end

  def sidekiq(timeout)
    server("sidekiq", "--timeout", timeout.to_s, "--concurrency", "1", "--require", file("#{WORK}#{SIDEKIQ}"))
  end

  def server(*command)
    start(Support::Program.new(RbConfig.ruby, "-S", *command))
  end

  def file(text)
    "#{@dir}/server.rb".tap { |path| File.write(path, text) }
  end

  def redis(*command)
    IO.popen(["redis-cli", "-s", "#{@dir}/redis", *command], err: File::NULL, &:read).strip
  end

  def held
    @etcd.keys.keys.filter_map { |key| key[%r{(.*)/uuid\z}, 1] }.sort
  end

  # Sends TERM, and returns when the server has ended. The block is called when its log says that it stops.
  def term(server, log)
    server.signal(:TERM)
    eventually { File.read(server.log.path).match?(log) }
    yield if block_given?
    server.wait
  end
end
